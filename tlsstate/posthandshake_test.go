package tlsstate_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pghandoff/tlsstate"
)

// message is one handshake message.
func message(kind byte, body []byte) []byte {
	return append([]byte{kind, byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...)
}

// ticket is the body of a NewSessionTicket with n bytes of ticket.
func ticket(n int) []byte {
	b := append(make([]byte, 8), 2, 'n', 'o', byte(n>>8), byte(n))
	b = append(b, make([]byte, n)...)
	return append(b, 0, 0)
}

var (
	keyUpdate        = message(24, []byte{0})
	keyUpdateRequest = message(24, []byte{1})
)

func TestTicketsAreReadAndForgotten(t *testing.T) {
	client, server := pair(t, suiteIDs[0])
	var wire []byte
	wire = server.SealRaw(wire, 22, append(message(4, ticket(10)), message(4, ticket(200))...))
	long := message(4, ticket(40_000))
	for len(long) > 0 {
		n := min(len(long), tlsstate.MaxPlain)
		wire = server.SealRaw(wire, 22, long[:n])
		long = long[n:]
	}
	wire, _ = server.Seal(wire, []byte("ready"))
	got, err := openAll(client, wire)
	if string(got) != "ready" || err != nil || client.Frag() != 0 || client.Owes() {
		t.Fatalf("%q, %v, %d bytes held, owes %v", got, err, client.Frag(), client.Owes())
	}
}

func TestBadHandshakeMessagesAreRefused(t *testing.T) {
	cases := []struct {
		name    string
		records [][]byte // contents of handshake records; nil stands for a record with data
		want    string
	}{
		{"certificate request", [][]byte{message(13, []byte{0, 0, 0})}, "client certificate"},
		{"hello request", [][]byte{message(0, nil)}, "type 0"},
		{"finished", [][]byte{message(20, make([]byte, 32))}, "type 20"},
		{"key update amid a record", [][]byte{append(bytes.Clone(keyUpdate), keyUpdate...)}, "does not end its record"},
		{"key update before the beginning of another message", [][]byte{append(bytes.Clone(keyUpdate), 4)}, "does not end its record"},
		{"key update with value 2", [][]byte{message(24, []byte{2})}, "value 2"},
		{"key update with 2 bytes", [][]byte{message(24, []byte{0, 0})}, "KeyUpdate of 2 bytes"},
		{"key update with 0 bytes", [][]byte{message(24, nil)}, "KeyUpdate of 0 bytes"},
		{"message longer than is held", [][]byte{{4, 1, 0, 0}}, "65540 bytes is longer than 65536"},
		{"data amid a message", [][]byte{message(4, ticket(10))[:7], nil}, "amid a handshake message"},
		{"ticket with nothing in it", [][]byte{message(4, nil)}, "malformed session ticket"},
		{"ticket of no bytes", [][]byte{message(4, ticket(0))}, "malformed session ticket"},
		{"ticket with its end cut off", [][]byte{message(4, ticket(10)[:20])}, "malformed session ticket"},
		{"ticket with more behind it", [][]byte{message(4, append(ticket(10), 0))}, "malformed session ticket"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			client, server := pair(t, suiteIDs[0])
			var wire []byte
			for _, r := range c.records {
				if r == nil {
					wire, _ = server.Seal(wire, []byte("data"))
				} else {
					wire = server.SealRaw(wire, 22, r)
				}
			}
			_, err := openAll(client, wire)
			var broke *tlsstate.ProtocolError
			if !errors.As(err, &broke) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v", err)
			}
		})
	}
	t.Run("ticket from a client", func(t *testing.T) {
		client, server := pair(t, suiteIDs[0])
		if _, err := openAll(server, client.SealRaw(nil, 22, message(4, ticket(10)))); err == nil {
			t.Fatal("accepted")
		}
	})
}

func TestKeyUpdateIsAnsweredOnceBeforeData(t *testing.T) {
	client, server := pair(t, suiteIDs[1])
	var wire []byte
	var err error
	for range 3 {
		if wire, err = server.RequestKeyUpdate(wire, true); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := openAll(client, wire); err != nil || !client.Owes() {
		t.Fatal(err, client.Owes())
	}
	answer, err := client.Seal(nil, nil)
	if err != nil || len(answer) != 5+5+1+16 || client.Owes() {
		t.Fatalf("answer of %d bytes, %v", len(answer), err)
	}
	if _, err := openAll(server, answer); err != nil || server.Owes() {
		t.Fatal("an answer is answered", err)
	}
	sealed, _ := client.Seal(nil, []byte("new key"))
	if got, err := openAll(server, sealed); string(got) != "new key" || err != nil {
		t.Fatal(got, err)
	}
	if in, out := client.Seq(); in != 0 || out != 1 {
		t.Errorf("sequence numbers %d and %d", in, out)
	}
}

func TestKeysChangeAtRandomPoints(t *testing.T) {
	const seed = 7
	for _, suite := range suiteIDs {
		t.Run(tls.CipherSuiteName(suite), func(t *testing.T) {
			client, server := pair(t, suite)
			rnd := rand.New(rand.NewPCG(seed, uint64(suite)))
			var sent, got int
			for sent < 10<<20 {
				from, to := client, server
				if rnd.IntN(2) == 0 {
					from, to = server, client
				}
				data := bytes.Repeat([]byte{byte(sent)}, rnd.IntN(60_000))
				cut := rnd.IntN(len(data) + 1)
				wire, err := from.Seal(nil, data[:cut])
				if err == nil && rnd.IntN(3) == 0 {
					wire, err = from.RequestKeyUpdate(wire, rnd.IntN(2) == 0)
				}
				if err == nil {
					wire, err = from.Seal(wire, data[cut:])
				}
				if err != nil {
					t.Fatal(err)
				}
				opened, err := openAll(to, wire)
				if err != nil || !bytes.Equal(opened, data) {
					t.Fatalf("after %d bytes: %v", sent, err)
				}
				sent += len(data)
				got += len(opened)
			}
			if sent != got {
				t.Errorf("%d of %d bytes", got, sent)
			}
		})
	}
}

func TestKeyIsChangedBeforeItsLimit(t *testing.T) {
	client, server := pair(t, suiteIDs[0])
	client.SetLimit(4)
	updates := 0
	for i := range 40 {
		wire, err := client.Seal(nil, []byte("row"))
		if err != nil {
			t.Fatal(err)
		}
		if len(wire) > 3+22 {
			updates++
		}
		if _, out := client.Seq(); out > 5 {
			t.Fatalf("record %d: %d records under one key", i, out)
		}
		if got, err := openAll(server, wire); string(got) != "row" || err != nil {
			t.Fatal(got, err)
		}
	}
	if updates != 9 && updates != 8 {
		t.Errorf("%d changes in 40 records", updates)
	}
}

func TestPeerIsAskedToChangeItsKey(t *testing.T) {
	client, server := pair(t, suiteIDs[0])
	client.SetLimit(4)
	asked := 0
	for range 20 {
		wire, _ := server.Seal(nil, []byte("row"))
		if _, err := openAll(client, wire); err != nil {
			t.Fatal(err)
		}
		if client.Owes() {
			asked++
			request, _ := client.Seal(nil, nil)
			if _, err := openAll(server, request); err != nil || !server.Owes() {
				t.Fatal(err, server.Owes())
			}
		}
	}
	if asked != 5 && asked != 4 {
		t.Errorf("asked %d times for 20 records at 4 a key", asked)
	}
}

func TestRecordsWithoutDataAreBounded(t *testing.T) {
	kinds := map[string]func(*tlsstate.Conn) []byte{
		"empty data":    func(s *tlsstate.Conn) []byte { return s.SealRaw(nil, 23, nil) },
		"tickets":       func(s *tlsstate.Conn) []byte { return s.SealRaw(nil, 22, message(4, ticket(1))) },
		"user canceled": func(s *tlsstate.Conn) []byte { return s.SealRaw(nil, 21, []byte{1, 90}) },
		"key updates":   func(s *tlsstate.Conn) []byte { return s.UnboundedKeyUpdate(nil) },
	}
	for name, next := range kinds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := pair(t, suiteIDs[0])
				survives := func() (n int) {
					for n < 1000 {
						if _, err := openAll(client, next(server)); err != nil {
							return n
						}
						n++
					}
					return n
				}
				for range 300 { // one an hour is fine for ever
					time.Sleep(time.Hour)
					if _, err := openAll(client, next(server)); err != nil {
						t.Fatal(err)
					}
				}
				for range 300 { // and so is one for each record of data
					data, _ := server.Seal(nil, []byte("row"))
					if _, err := openAll(client, append(data, next(server)...)); err != nil {
						t.Fatal(err)
					}
				}
				if n := survives(); n < 32 || n > 64 {
					t.Errorf("refused after %d", n)
				}
			})
		})
	}
}

// crypto/tls gives a connection up after 16 records without data, and we stay below that.
func TestOurKeyUpdatesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := pair(t, suiteIDs[0])
		inARow := func() (n int) {
			for n < 100 {
				wire, err := client.RequestKeyUpdate(nil, false)
				if err != nil {
					if err != tlsstate.ErrKeyUpdateRate || len(wire) != 0 {
						t.Fatal(err)
					}
					return n
				}
				if _, err := openAll(server, wire); err != nil {
					t.Fatal(err)
				}
				n++
			}
			return n
		}
		if n := inARow(); n != 8 {
			t.Errorf("%d in a row", n)
		}
		time.Sleep(3 * time.Second)
		if n := inARow(); n != 3 {
			t.Errorf("%d after three seconds", n)
		}
		wire, err := client.Seal(nil, []byte("data"))
		if got, failed := openAll(server, wire); string(got) != "data" || err != nil || failed != nil { // refusal changed nothing
			t.Fatal(err, failed)
		}
		if n := inARow(); n != 1 {
			t.Errorf("%d after a record of data", n)
		}
	})
}

func TestForgottenConnectionsHaveNoSecrets(t *testing.T) {
	for _, suite := range recordSuites {
		client, _ := pair(t, suite)
		client.HoldPlain([]byte("hunter2"))
		secrets, plain := client.Secrets(), client.HeldPlain()
		for range 2 {
			client.Forget()
		}
		for _, s := range append(secrets, plain) {
			if strings.Trim(string(s), "\x00") != "" {
				t.Fatalf("left: %x", s)
			}
		}
		if _, err := client.Seal(nil, []byte("x")); !errors.Is(err, tlsstate.ErrForgotten) || !errors.Is(err, tlsstate.ErrDead) {
			t.Fatal(err)
		}
		if out, err := client.AppendAlert(nil, errors.New("x")); len(out) > 0 || err != nil {
			t.Fatal(err)
		}
		if out, err := client.AppendCloseNotify(nil); len(out) > 0 || err == nil {
			t.Fatal(err)
		}
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	client, _ := pair(t, suiteIDs[0])
	client.HoldPlain([]byte("hunter2hunter2"))
	secrets := append(client.Secrets(), []byte("hunter2hunter2"))
	holder := struct{ C *tlsstate.Conn }{client}
	var all []string
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%p", "%t"} {
		all = append(all, fmt.Sprintf(verb, client), fmt.Sprintf(verb, *client), fmt.Sprintf(verb, holder),
			fmt.Sprintf(verb, []any{client}), fmt.Sprintf(verb, struct{ c tlsstate.Conn }{*client}),
			fmt.Sprintf(verb, struct{ c *tlsstate.Conn }{client}), fmt.Sprintf(verb, &struct{ c []tlsstate.Conn }{[]tlsstate.Conn{*client}}))
	}
	all = append(all, fmt.Sprint(client), client.String(), client.GoString(), jsonText(t, client), jsonText(t, *client), slogText(client))
	for _, text := range all {
		for _, s := range secrets {
			for _, form := range []string{string(s), fmt.Sprintf("%x", s), fmt.Sprintf("%X", s), strings.Trim(fmt.Sprint(s), "[]"), fmt.Sprintf("%#v", s)[7:]} {
				if strings.Contains(text, form) {
					t.Fatalf("a secret is in %q", text)
				}
			}
		}
	}
	if !strings.Contains(client.String(), "TLS_AES_128_GCM_SHA256") || !strings.Contains(client.String(), "[redacted]") {
		t.Error(client.String())
	}
}

// A connection that rests goes on where it was, whatever came before and
// whichever end it is.
func TestRestChangesNothingForThePeer(t *testing.T) {
	for _, suite := range suiteIDs {
		client, server := pair(t, suite)
		for i := range 200 {
			from, to := client, server
			if i%2 == 1 {
				from, to = server, client
			}
			var wire []byte
			var err error
			if i%7 == 3 {
				if wire, err = from.RequestKeyUpdate(nil, i%3 == 0); err != nil {
					t.Fatal(err)
				}
			}
			if i%3 == 0 {
				from.Rest()
			}
			if i%5 == 0 {
				to.Rest()
			}
			if wire, err = from.Seal(wire, []byte(strings.Repeat("data ", i))); err != nil {
				t.Fatal(err)
			}
			if data, err := openAll(to, wire); err != nil || string(data) != strings.Repeat("data ", i) {
				t.Fatalf("%s, message %d: %d bytes, %v", tls.CipherSuiteName(suite), i, len(data), err)
			}
		}
	}
}
