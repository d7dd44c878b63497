package handoff_test

import (
	"bytes"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"pghandoff/handoff"
)

func ping(id string) string { return `{"v":1,"op":"ping","id":"` + id + `"}` + "\n" }

func TestRequestsComeInOrderHoweverTheyArrive(t *testing.T) {
	text := ping("1") + `{"v":1,"id":"2","op":"acquire","database":"orders","parameters":{"b":"1","a":"2"}}` + "\n" + ping("3")
	whole := converse(text, true)
	if got := fmt.Sprint(whole.ids()); got != "[1 2 3]" || whole.fault != nil || whole.calls[1].Database != "orders" {
		t.Errorf("got %+v", whole)
	}
	if got := whole.calls[1].Parameters; !reflect.DeepEqual(got, []handoff.Parameter{{Name: "b", Value: "1"}, {Name: "a", Value: "2"}}) {
		t.Errorf("got parameters %v", got)
	}
	ones := bytes.Repeat([]byte{1}, len(text))
	for _, asking := range []bool{true, false} {
		if got := converse(text, asking, ones...); !reflect.DeepEqual(got, whole) {
			t.Errorf("byte by byte: got %+v, want %+v", got, whole)
		}
	}
}

func TestWhatIsFedMayBeUsedAgain(t *testing.T) {
	var c handoff.Conversation
	buf := []byte(ping("1"))
	c.Feed(buf)
	clear(buf)
	if call, ok, fault := c.Next(); !ok || *call.ID != "1" {
		t.Errorf("got %+v, %v", call, fault)
	}
}

func TestLineOfTheLimitIsTakenAndOneByteMoreIsNot(t *testing.T) {
	const limit = 8 << 10
	line := func(size int) string { return `{"v":1,"op":"ping","x":"` + strings.Repeat("x", size-26) + `"}` }
	for name, c := range map[string]struct {
		text  string
		calls int
		says  string
	}{
		"the limit":                   {line(limit) + "\n", 1, ""},
		"the limit, open":             {line(limit), 0, "does not end"},
		"one more":                    {line(limit+1) + "\n" + ping("1"), 0, "longer than 8 KiB"},
		"one more, open":              {line(limit + 1), 0, "longer than 8 KiB"},
		"the limit behind another":    {ping("1") + line(limit) + "\n", 2, ""},
		"one more behind another":     {ping("1") + line(limit+1) + "\n", 1, "longer than 8 KiB"},
		"one more behind another one": {ping("1") + line(limit) + "\n" + line(limit+1), 2, "longer than 8 KiB"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, lengths := range [][]byte{nil, bytes.Repeat([]byte{1}, len(c.text)), bytes.Repeat([]byte{250}, len(c.text)/250)} {
				o := converse(c.text, true, lengths...)
				if len(o.calls) != c.calls || (o.fault != nil) != (c.says != "") || o.fault != nil && !strings.Contains(o.fault.Message, c.says) {
					t.Errorf("%d pieces: %d calls, %v", len(lengths)+1, len(o.calls), o.fault)
				}
			}
		})
	}
}

// Proves that whoever stops to feed above MaxPending never waits in vain.
func TestMoreThanMaxPendingAlwaysGivesSomething(t *testing.T) {
	var c handoff.Conversation
	c.Feed([]byte(strings.Repeat("x", handoff.MaxPending)))
	if _, ok, fault := c.Next(); ok || fault != nil || c.Pending() != handoff.MaxPending {
		t.Errorf("got %v, %v with %d bytes", ok, fault, c.Pending())
	}
	c.Feed([]byte("x"))
	if _, ok, fault := c.Next(); ok || fault == nil || c.Pending() != 0 {
		t.Errorf("got %v, %v with %d bytes", ok, fault, c.Pending())
	}
	c = handoff.Conversation{}
	c.Feed([]byte(ping("1")))
	c.Feed([]byte(ping("2")))
	if want := len(ping("1") + ping("2")); c.Pending() != want {
		t.Errorf("%d bytes wait, want %d", c.Pending(), want)
	}
}

func TestNothingComesAfterAFault(t *testing.T) {
	for name, line := range map[string]string{
		"not JSON":      "hello\n",
		"not UTF-8":     "{\"v\":1,\"op\":\"ping\",\"x\":\"\xff\"}\n",
		"duplicate":     `{"v":1,"v":1,"op":"ping"}` + "\n",
		"empty":         "\n",
		"two on one":    `{"v":1,"op":"ping"} {"v":1,"op":"ping"}` + "\n",
		"unknown op":    `{"v":1,"id":"x7","op":"fly"}` + "\n",
		"cut off":       `{"v":1,"op":"pi` + "\n",
		"much too long": strings.Repeat("x", 70<<10),
	} {
		t.Run(name, func(t *testing.T) {
			var c handoff.Conversation
			var o outcome
			c.Feed([]byte(ping("1") + line + ping("2")))
			o.take(&c)
			if fmt.Sprint(o.ids()) != "[1]" || !handoff.IsCode(o.fault, "08P01") {
				t.Errorf("got %+v", o)
			}
			if name == "unknown op" && (o.id == nil || *o.id != "x7") {
				t.Errorf("id %v goes back", o.id)
			}
			c.Feed([]byte(ping("3")))
			c.Close()
			if call, ok, fault := c.Next(); ok || fault != nil || c.Pending() != 0 {
				t.Errorf("then got %+v, %v, %v with %d bytes", call, ok, fault, c.Pending())
			}
		})
	}
}

func TestCloseInTheMiddleOfALineIsAFault(t *testing.T) {
	var c handoff.Conversation
	var o outcome
	c.Feed([]byte(ping("1") + `{"v":1,"op":"ping"}`))
	c.Close()
	o.take(&c)
	if fmt.Sprint(o.ids()) != "[1]" || !handoff.IsCode(o.fault, "08P01") || !strings.Contains(o.fault.Message, "does not end") {
		t.Errorf("got %+v", o)
	}
	c, o = handoff.Conversation{}, outcome{}
	c.Feed([]byte(ping("1")))
	c.Close()
	c.Feed([]byte(ping("2")))
	o.take(&c)
	if fmt.Sprint(o.ids()) != "[1]" || o.fault != nil {
		t.Errorf("got %+v", o)
	}
}

func TestLeasesAreOwnedByWhoAcquiredThem(t *testing.T) {
	var c handoff.Conversation
	secret := handoff.Secret(7)
	claim := func(lease string) bool {
		got := c.Claim(handoff.Call{Op: handoff.OpCancel, Lease: lease, Secret: &secret})
		if got.Lease != lease || got.Secret != &secret {
			t.Errorf("got %+v", got)
		}
		return got.Owner
	}
	if claim("l") {
		t.Error("a lease of nobody is owned")
	}
	c.Acquired("l")
	c.Acquired("m")
	if !claim("l") || !claim("m") {
		t.Error("an acquired lease is not owned")
	}
	c.Released("l")
	c.Released("never acquired")
	if claim("l") || !claim("m") {
		t.Error("of two leases the wrong one is owned")
	}
	c.Released("m")
	if !reflect.DeepEqual(c, handoff.Conversation{}) {
		t.Errorf("released leases leave %+v", c)
	}
	for i := range 1025 {
		c.Acquired(fmt.Sprint(i))
	}
	if claim("0") || !claim("1") || !claim("1024") {
		t.Error("of 1,025 leases not just the oldest was forgotten")
	}
}

func TestIdleConversationKeepsNothing(t *testing.T) {
	for name, text := range map[string]string{"one": ping("1"), "many": strings.Repeat(ping("1"), 100)} {
		var c handoff.Conversation
		for i := range len(text) {
			c.Feed([]byte(text[i : i+1]))
			new(outcome).take(&c)
		}
		c.Feed([]byte(text))
		new(outcome).take(&c)
		if !reflect.DeepEqual(c, handoff.Conversation{}) {
			t.Errorf("%s: kept %+v", name, c)
		}
	}
}

// Proves that what follows a large piece does not keep it.
func TestRestOfAPieceIsAllThatIsKept(t *testing.T) {
	piece := []byte(strings.Repeat(ping("1"), 500) + `{"v":1`)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	all := make([]handoff.Conversation, 200)
	for i := range all {
		all[i].Feed(piece)
		new(outcome).take(&all[i])
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / int64(len(all)); each > 512 {
		t.Errorf("%d bytes for each conversation with %d bytes pending", each, all[0].Pending())
	}
	runtime.KeepAlive(all)
}
