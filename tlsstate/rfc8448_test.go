package tlsstate_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"pghandoff/tlsstate"
)

// trace is a section of RFC 8448, by the names in testdata/rfc8448.txt.
type trace struct {
	section string
	values  map[string][]byte
}

// traces are the sections in which the whole handshake is one that we do: all but the one with early data.
func traces(t *testing.T) []trace {
	t.Helper()
	text, err := os.ReadFile("testdata/rfc8448.txt")
	if err != nil {
		t.Fatal(err)
	}
	var all []trace
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch name, value, ok := strings.Cut(line, " = "); {
		case strings.HasPrefix(line, "["):
			all = append(all, trace{strings.Trim(line, "[]"), map[string][]byte{}})
		case ok:
			all[len(all)-1].values[name] = unhex(t, value)
		}
	}
	if len(all) != 4 {
		t.Fatalf("%d sections", len(all))
	}
	return all
}

// value is there, or the file lost it.
func (tr trace) value(t *testing.T, name string) []byte {
	t.Helper()
	v := tr.values[name]
	if len(v) == 0 {
		t.Fatalf("section %s has no %s", tr.section, name)
	}
	return v
}

// ends are both sides with the secrets of this epoch, "handshake" or "application".
func (tr trace) ends(t *testing.T, epoch string) (client, server *tlsstate.Conn) {
	t.Helper()
	c, s := tr.value(t, "client "+epoch+" secret"), tr.value(t, "server "+epoch+" secret")
	client, err := tlsstate.NewTestConn(false, tls.TLS_AES_128_GCM_SHA256, s, c)
	if err != nil {
		t.Fatal(err)
	}
	server, err = tlsstate.NewTestConn(true, tls.TLS_AES_128_GCM_SHA256, c, s)
	if err != nil {
		t.Fatal(err)
	}
	return client, server
}

// protected is a flight without the ChangeCipherSpec of the compatibility mode, which the handshaker reads.
func protected(flight []byte) []byte {
	return bytes.TrimPrefix(flight, []byte{20, 3, 3, 0, 1, 1})
}

func TestRFC8448Keys(t *testing.T) {
	for _, tr := range traces(t) {
		for _, epoch := range []string{"handshake", "application"} {
			t.Run(tr.section+"/"+epoch, func(t *testing.T) {
				client, server := tr.ends(t, epoch)
				for side, ivs := range map[string][2][]byte{
					"client": {client.SendIV(), server.ReceiveIV()}, "server": {server.SendIV(), client.ReceiveIV()},
				} {
					want := tr.value(t, side+" "+epoch+" iv")
					if !bytes.Equal(ivs[0], want) || !bytes.Equal(ivs[1], want) {
						t.Errorf("IV of the %s is %x and %x, not %x", side, ivs[0], ivs[1], want)
					}
					key, err := tlsstate.TrafficKey(tls.TLS_AES_128_GCM_SHA256, tr.value(t, side+" "+epoch+" secret"))
					if want := tr.value(t, side+" "+epoch+" key"); err != nil || !bytes.Equal(key, want) {
						t.Errorf("key of the %s is %x, not %x, %v", side, key, want, err)
					}
				}
			})
		}
	}
}

// The flights under the handshake secrets: the server's is sealed to the same bytes, and both open to handshake messages,
// of which ours refuses the first by its number.
func TestRFC8448Flights(t *testing.T) {
	for _, tr := range traces(t) {
		t.Run(tr.section, func(t *testing.T) {
			client, server := tr.ends(t, "handshake")
			theirs := protected(tr.value(t, "server flight"))
			if got := server.SealRaw(nil, 22, tr.value(t, "server flight messages")); !bytes.Equal(got, theirs) {
				t.Errorf("sealed to\n%x, not\n%x", got, theirs)
			}
			refuses(t, client, theirs, 8) // EncryptedExtensions
			first := 20                   // Finished
			if strings.Contains(tr.section, "Client Authentication") {
				first = 11 // Certificate
			}
			refuses(t, server, protected(tr.value(t, "client flight")), first)
		})
	}
}

func refuses(t *testing.T, c *tlsstate.Conn, record []byte, kind int) {
	t.Helper()
	_, _, err := c.Open(bytes.Clone(record))
	var broke *tlsstate.ProtocolError
	if !errors.As(err, &broke) || !strings.Contains(err.Error(), fmt.Sprintf("handshake message of type %d after", kind)) {
		t.Errorf("record opened to %v, not to a message of type %d", err, kind)
	}
}

// All that follows the handshake: the ticket opens, the data is sealed to the same bytes and opens, and so do the alerts.
func TestRFC8448Records(t *testing.T) {
	data := make([]byte, 50)
	for i := range data {
		data[i] = byte(i)
	}
	for _, tr := range traces(t) {
		t.Run(tr.section, func(t *testing.T) {
			client, server := tr.ends(t, "application")
			if sealed := tr.values["session ticket"]; sealed != nil {
				if plain, n, err := client.Open(bytes.Clone(sealed)); len(plain) > 0 || n != len(sealed) || err != nil {
					t.Fatalf("ticket: %x, %d, %v", plain, n, err)
				}
				server.SetSeq(1) // of what the server sends next; it has received nothing
				server.SetReceiveSeq(0)
			}
			if strings.HasPrefix(tr.section, "3 ") {
				exchange(t, client, server, data, tr.value(t, "client data"))
				exchange(t, server, client, data, tr.value(t, "server data"))
			}
			closes(t, client, server, tr.value(t, "client alert"))
			closes(t, server, client, tr.value(t, "server alert"))
		})
	}
}

func exchange(t *testing.T, from, to *tlsstate.Conn, data, want []byte) {
	t.Helper()
	sealed, err := from.Seal(nil, data)
	if err != nil || !bytes.Equal(sealed, want) {
		t.Errorf("record is\n%x, not\n%x, %v", sealed, want, err)
	}
	if plain, err := openAll(to, bytes.Clone(want)); err != nil || !bytes.Equal(plain, data) {
		t.Errorf("opened %x, %v", plain, err)
	}
}

func closes(t *testing.T, from, to *tlsstate.Conn, want []byte) {
	t.Helper()
	sealed, err := from.AppendCloseNotify(nil)
	if err != nil || !bytes.Equal(sealed, want) {
		t.Errorf("alert is\n%x, not\n%x, %v", sealed, want, err)
	}
	if _, err := openAll(to, bytes.Clone(want)); err != io.EOF {
		t.Errorf("alert opened to %v", err)
	}
}

func TestRFC8448Hellos(t *testing.T) {
	for _, tr := range traces(t) {
		retried := strings.Contains(tr.section, "HelloRetryRequest")
		group := tls.X25519
		if retried {
			group = tls.CurveP256
		}
		t.Run(tr.section, func(t *testing.T) {
			judgeHello(t, tr.value(t, "server hello"), group, false)
			// The rest of the flight behind it changes nothing.
			judgeHello(t, append(bytes.Clone(tr.value(t, "server hello")), tr.value(t, "server flight")...), group, false)
			if retried {
				judgeHello(t, tr.value(t, "hello retry request"), group, true)
			}
		})
	}
}

// judgeHello tries a ServerHello, and every beginning of it.
func judgeHello(t *testing.T, record []byte, group tls.CurveID, retry bool) {
	t.Helper()
	version, suite, gotGroup, gotRetry, random := tlsstate.Hello(record)
	if version != tls.VersionTLS13 || suite != tls.TLS_AES_128_GCM_SHA256 || gotGroup != group || gotRetry != retry || !bytes.Equal(random, record[11:43]) {
		t.Errorf("version %x, suite %x, group %v, retry %v, random %x", version, suite, gotGroup, gotRetry, random)
	}
	size := 5 + int(record[3])<<8 + int(record[4])
	for n := range record[:size] {
		if g, whole := tlsstate.ServerGroup(record[:n]); whole || g != 0 {
			t.Fatalf("%d of %d bytes are taken as whole, with group %v", n, size, g)
		}
	}
	if g, whole := tlsstate.ServerGroup(record); !whole || g != group {
		t.Errorf("group %v, whole %v", g, whole)
	}
}
