package handoff_test

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"pghandoff/handoff"
)

// outcome is all that a conversation gives.
type outcome struct {
	calls []handoff.Call
	id    *string // what goes back with the fault
	fault *handoff.Refusal
}

// take asks until nothing comes.
func (o *outcome) take(c *handoff.Conversation) {
	for {
		call, ok, fault := c.Next()
		if fault != nil {
			o.id, o.fault = call.ID, fault
		}
		if !ok {
			return
		}
		o.calls = append(o.calls, call)
	}
}

func (o *outcome) ids() (all []string) {
	for _, c := range o.calls {
		if c.ID != nil {
			all = append(all, *c.ID)
		}
	}
	return all
}

// converse feeds the text in pieces of the lengths given, the rest at once, and closes.
func converse(text string, asking bool, lengths ...byte) (o outcome) {
	var c handoff.Conversation
	for _, n := range lengths {
		piece := text[:min(int(n), len(text))]
		text = text[len(piece):]
		c.Feed([]byte(piece))
		if asking {
			o.take(&c)
		}
	}
	c.Feed([]byte(text))
	o.take(&c)
	c.Close()
	o.take(&c)
	return o
}

// However the bytes are cut, and whenever one asks, the same calls and the same fault come out: those of the lines.
func FuzzConversation(f *testing.F) {
	f.Add(ping("1")+ping("2"), []byte{1, 2, 3})
	f.Add(ping("1")+"\n"+ping("2"), []byte{21, 21})
	f.Add(`{"v":1,"id":"x","op":"fly"}`+"\n", []byte{200})
	f.Add(strings.Repeat("x", 8<<10)+"\n", []byte{255, 255})
	f.Add(`{"v":1,"op":"release","lease":"l","secret":1}`+"\n"+`{"v":1`, []byte{})
	f.Fuzz(func(t *testing.T, text string, lengths []byte) {
		want := byLines(text)
		for _, asking := range []bool{true, false} {
			for _, cuts := range [][]byte{nil, lengths, bytes.Repeat([]byte{1}, len(text))} {
				if got := converse(text, asking, cuts...); !reflect.DeepEqual(got, want) {
					t.Errorf("%q in pieces of %v\ngives %+v\nnot   %+v", text, cuts, got, want)
				}
			}
		}
	})
}

// byLines is what has to come out.
func byLines(text string) (o outcome) {
	const limit = 8 << 10
	for o.fault == nil && text != "" {
		line, rest, whole := strings.Cut(text, "\n")
		call, err := handoff.ParseCall([]byte(line))
		switch {
		case !whole && len(line) <= limit:
			o.fault = &handoff.Refusal{SQLState: "08P01", Message: "malformed line: the last line does not end",
				Hint: "send one JSON object a line, as version 1 of the handoff protocol has it"}
		case err != nil:
			o.id, o.fault = call.ID, err.(*handoff.Refusal)
		default:
			o.calls = append(o.calls, call)
		}
		text = rest
	}
	return o
}
