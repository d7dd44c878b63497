package tlsstate_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pghandoff/tlsstate"
)

// again writes c down and reads it back.
func again(t testing.TB, c *tlsstate.Conn) *tlsstate.Conn {
	t.Helper()
	s, err := c.Export()
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	s2, err := tlsstate.ParseState(b)
	if err != nil {
		t.Fatal(err)
	}
	b2, err := s2.AppendBinary(nil)
	if err != nil || !bytes.Equal(b, b2) {
		t.Fatalf("%d bytes become %d, %v", len(b), len(b2), err)
	}
	s.Erase()
	next, err := tlsstate.Adopt(s2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tlsstate.Adopt(s2); err != tlsstate.ErrNoState {
		t.Fatalf("adopted twice: %v", err)
	}
	return next
}

func TestTenMegabytesThroughManyOwners(t *testing.T) {
	data := make([]byte, 10<<20)
	rand.Read(data)
	want := sha256.Sum256(data)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run("crypto/tls/"+tls.VersionName(version), func(t *testing.T) {
			_, server, config := good(t)
			config.MaxVersion = version
			s, err := tlsstate.Client(background(t), serve(t, server, false, func(tc *tls.Conn) error {
				_, err := io.CopyN(tc, tc, int64(len(data)))
				io.Copy(io.Discard, tc) // KeyUpdates may still come
				return err
			}), config)
			if err != nil {
				t.Fatal(err)
			}
			o := newOwner(t, s, 4)
			if err := o.transfer(data, len(data)); err != nil {
				t.Fatal(err)
			}
			o.judge(t, want[:])
			if o.seen["unsent"] < 20 {
				t.Errorf("%d moves with unsent bytes", o.seen["unsent"])
			}
		})
		for _, suite := range append(suiteIDs, suite12IDs[0], suite12IDs[5]) {
			if (suite < 0x1400) != (version == tls.VersionTLS13) {
				continue
			}
			t.Run("openssl/"+tls.CipherSuiteName(suite), func(t *testing.T) {
				dir := t.TempDir()
				if err := os.WriteFile(filepath.Join(dir, "big"), data, 0o600); err != nil {
					t.Fatal(err)
				}
				_, server, config := old(t, suite)
				args := []string{"-ciphersuites", tls.CipherSuiteName(suite)}
				if version == tls.VersionTLS12 {
					args = []string{"-tls1_2", "-cipher", opensslName(suite)}
				}
				srv := startOpenSSL(t, &server.Certificates[0], dir, append(args, "-WWW")...)
				s, err := srv.dial(t, config)
				if err != nil {
					t.Fatal(err)
				}
				o := newOwner(t, s, 4)
				header := "HTTP/1.0 200 ok\r\nContent-type: text/plain\r\n\r\n"
				sum := sha256.New()
				skip := len(header)
				o.sink = func(p []byte) {
					n := min(skip, len(p))
					skip -= n
					sum.Write(p[n:])
				}
				if err := o.transfer([]byte("GET /big HTTP/1.0\r\n\r\n"), len(data)+len(header)); err != nil {
					t.Fatal(err)
				}
				o.sum = sum
				o.judge(t, want[:])
			})
		}
	}
}

func (o *owner) judge(t *testing.T, want []byte) {
	t.Helper()
	t.Logf("%d moves, %v", o.moves, o.seen)
	if !bytes.Equal(o.sum.Sum(nil), want) {
		t.Error("other data came")
	}
	if o.moves < 100 || o.seen["ciphertext"] < 20 || o.seen["plaintext"] < 20 {
		t.Error("too few moves")
	}
}

// Every part of the state survives: half a handshake message, what is owed, what is closed.
func TestStateIsWhole(t *testing.T) {
	for _, suite := range suiteIDs {
		t.Run(tls.CipherSuiteName(suite), func(t *testing.T) {
			client, server := pair(t, suite)
			half := message(4, ticket(300))
			if _, err := openAll(client, server.SealRaw(nil, 22, half[:100])); err != nil || client.Frag() != 100 {
				t.Fatal(err)
			}
			client = again(t, client)
			if _, err := openAll(client, server.SealRaw(nil, 22, append(half[100:], keyUpdateRequest...))); err != nil {
				t.Fatal(err)
			}
			client, server = again(t, client), again(t, server)
			if !client.Owes() {
				t.Fatal("what is owed is lost")
			}
			wire, err := client.AppendCloseNotify(nil)
			if err != nil {
				t.Fatal(err)
			}
			client = again(t, client)
			if _, err := client.Seal(nil, []byte("x")); err != tlsstate.ErrSendClosed {
				t.Fatal(err)
			}
			if _, err := openAll(server, wire); err != io.EOF {
				t.Fatal(err)
			}
			server = again(t, server)
			if _, _, err := server.Open(nil); err != io.EOF {
				t.Fatal(err)
			}
		})
	}
	t.Run("records without data stay bounded", func(t *testing.T) {
		client, server := pair(t, suiteIDs[0])
		n := 0
		for ; n < 200; n++ {
			if _, err := openAll(client, server.SealRaw(nil, 23, nil)); err != nil {
				break
			}
			client = again(t, client)
		}
		if n > 70 {
			t.Errorf("%d records", n)
		}
	})
	t.Run("TLS 1.2 retires", func(t *testing.T) {
		client, _ := pair(t, suite12IDs[0])
		client.SetLimit(5)
		client.SetSeq(5)
		if _, err := client.Seal(nil, []byte("x")); err != nil || !client.Retire() {
			t.Fatal(err)
		}
		if client = again(t, client); !client.Retire() {
			t.Fatal("retirement is forgotten")
		}
	})
}

func TestExportedConnIsDead(t *testing.T) {
	client, _ := pair(t, suiteIDs[0])
	client.HoldIn([]byte("ciphertext"))
	client.HoldPlain([]byte("plaintext"))
	client.HoldOut([]byte("sealed"))
	s, err := client.Export()
	if err != nil {
		t.Fatal(err)
	}
	if len(client.HeldIn())+len(client.HeldPlain())+len(client.HeldOut()) > 0 || client.Owes() {
		t.Error("bytes are left")
	}
	_, _, openErr := client.Open(nil)
	_, sealErr := client.Seal(nil, []byte("x"))
	_, updateErr := client.RequestKeyUpdate(nil, true)
	_, closeErr := client.AppendCloseNotify(nil)
	_, exportErr := client.Export()
	for i, err := range []error{openErr, sealErr, updateErr, closeErr, exportErr, client.HoldIn([]byte("x")), client.HoldOut([]byte("x"))} {
		if !errors.Is(err, tlsstate.ErrExported) || !errors.Is(err, tlsstate.ErrDead) {
			t.Error(i, err)
		}
	}
	if out, err := client.AppendAlert(nil, errors.New("x")); len(out) > 0 || err != nil {
		t.Error("an alert", err)
	}
	client.Rest()
	client.Forget() // must not touch what was exported
	back, err := tlsstate.Adopt(s)
	if err != nil || string(back.HeldIn()) != "ciphertext" || string(back.HeldPlain()) != "plaintext" || string(back.HeldOut()) != "sealed" {
		t.Fatal(err)
	}
	if _, err := back.Seal(nil, []byte("x")); err != nil {
		t.Fatal(err)
	}
	for _, empty := range []tlsstate.State{{}, s} {
		empty.Erase()
		if _, err := empty.AppendBinary(nil); err != tlsstate.ErrNoState {
			t.Error(err)
		}
	}
}

func TestStatesOfOtherFormatsAreNamed(t *testing.T) {
	b := encoded(t, suiteIDs[0])
	b[4] = 2
	_, err := tlsstate.ParseState(b)
	var format *tlsstate.StateFormatError
	if !errors.As(err, &format) || format.Format != 2 || !strings.Contains(err.Error(), "format 2, and this program reads format 1") {
		t.Fatal(err)
	}
	b[4] = 1
	for n := range b {
		if _, err := tlsstate.ParseState(b[:n]); err != tlsstate.ErrStateMalformed {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
	if _, err := tlsstate.ParseState(append(b, 0)); err != tlsstate.ErrStateMalformed {
		t.Fatal(err)
	}
}

// encoded is a state with something in every place.
func encoded(t testing.TB, suite uint16) []byte {
	t.Helper()
	client, server := pair(t, suite)
	if suite < 0x1400 {
		if _, err := openAll(client, server.SealRaw(nil, 22, message(4, ticket(10))[:9])); err != nil {
			t.Fatal(err)
		}
	}
	client.HoldIn([]byte("ciphertext"))
	client.HoldPlain([]byte("plaintext"))
	client.HoldOut([]byte("sealed"))
	s, err := client.Export()
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.AppendBinary(nil)
	if err != nil || len(b) > tlsstate.MaxState {
		t.Fatal(len(b), err)
	}
	return b
}

func TestStatesPrintNoSecrets(t *testing.T) {
	client, _ := pair(t, suiteIDs[0])
	client.HoldPlain([]byte("hunter2"))
	secrets := append(client.Secrets(), []byte("hunter2"))
	s, err := client.Export()
	if err != nil {
		t.Fatal(err)
	}
	texts := []string{jsonText(t, s), jsonText(t, []any{&s}), slogText(s)}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, v := range []any{s, &s, []tlsstate.State{s}, struct{ s tlsstate.State }{s}, &struct{ s *tlsstate.State }{&s}} {
			texts = append(texts, fmt.Sprintf(verb, v))
		}
	}
	for _, text := range texts {
		for _, secret := range secrets {
			for _, form := range []string{"%s", "%x", "%d"} {
				if strings.Contains(text, strings.Trim(fmt.Sprintf(form, secret), "[]")) {
					t.Fatalf("%q", text)
				}
			}
		}
	}
	if _, err := json.Marshal(s); err != nil {
		t.Fatal(err)
	}
}

// Any bytes as a state: no panic, no more memory than they have themselves, and what is read is written the same.
func FuzzParseState(f *testing.F) {
	for _, suite := range recordSuites {
		f.Add(encoded(f, suite))
	}
	f.Add([]byte("TLSS\x02"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := tlsstate.ParseState(data)
		if err != nil {
			return
		}
		b, err := s.AppendBinary(nil)
		if err != nil || !bytes.Equal(b, data) {
			t.Fatalf("%x is written as %x, %v", data, b, err)
		}
		c, err := tlsstate.Adopt(s)
		if err != nil {
			t.Fatal(err)
		}
		c.Open(bytes.Clone(data))
		c.Seal(nil, []byte("x"))
		c.Forget()
	})
}
