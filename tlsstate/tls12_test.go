package tlsstate_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"pghandoff/tlsstate"
)

func rsaKey(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// old is good with TLS 1.2, this suite, and a certificate that it can use.
func old(t testing.TB, suite uint16) (*authority, *tls.Config, tlsstate.Config) {
	t.Helper()
	ca, server, config := good(t)
	server.MaxVersion, server.CipherSuites = tls.VersionTLS12, []uint16{suite}
	if strings.Contains(tls.CipherSuiteName(suite), "_RSA_") {
		server.Certificates[0] = *ca.issueFor(t, rsaKey(t), nil)
	}
	return ca, server, config
}

// The P_SHA256 vector that was published on the mailing list of the TLS working group.
func TestPRFIsThatOfTLS12(t *testing.T) {
	want := unhex(t, "e3f229ba727be17b8d122620557cd453c2aab21d07c3d495329b52d4e61edb5a6b301791e90d35c9c9a46b4e14baf9af0fa022f7077def17abfd3797c0564bab4fbc91666e9def9b97fce34f796789baa48082d122ee42c5a72e5a5110fff70187347b66")
	got := tlsstate.PRF12(unhex(t, "9bbe436ba940f017b17652849a71db35"), "test label", unhex(t, "a0ba9f936cda311827a6f796ffd5198c"), len(want))
	if !bytes.Equal(got, want) {
		t.Errorf("%x", got)
	}
}

func TestTLS12AgainstCryptoTLS(t *testing.T) {
	data := make([]byte, 3<<20)
	rand.Read(data)
	for _, suite := range suite12IDs {
		t.Run(tls.CipherSuiteName(suite), func(t *testing.T) {
			ca, server, config := old(t, suite)
			server.ClientAuth, server.ClientCAs = tls.RequireAndVerifyClientCert, ca.pool()
			config.Certificate = ca.issueFor(t, rsaKey(t), nil)
			s, err := tlsstate.Client(background(t), serve(t, server, false, echo), config)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if i := s.Info(); i.VersionName() != "TLS 1.2" || i.Suite != suite || i.ALPN != "postgresql" || !i.ClientCertSent || i.EndpointBinding == nil {
				t.Errorf("%+v", i)
			}
			wrote := make(chan error, 1)
			go func() { // ends with its data, or with s; waited for below
				_, err := s.Write(data)
				wrote <- errors.Join(err, s.CloseWrite())
			}()
			sum := sha256.New()
			if _, err := io.Copy(sum, s); err != nil {
				t.Error(err)
			}
			if err := <-wrote; err != nil {
				t.Error(err)
			}
			if want := sha256.Sum256(data); !bytes.Equal(sum.Sum(nil), want[:]) {
				t.Error("other data came back")
			}
		})
	}
}

// With TLS 1.2, too, nothing behind the handshake has been read, and each Finished has used up one sequence number.
func TestTLS12HandshakeLeavesAllDataInTheKernel(t *testing.T) {
	_, server, config := old(t, suite12IDs[0])
	nc := serve(t, server, false, func(tc *tls.Conn) error {
		if _, err := io.WriteString(tc, "early words"); err != nil {
			return err
		}
		return tc.Close()
	})
	s, err := tlsstate.Client(background(t), nc, config)
	if err != nil {
		t.Fatal(err)
	}
	nc, conn, err := s.Detach()
	if err != nil {
		t.Fatal(err)
	}
	if in, out := conn.Seq(); in != 1 || out != 1 || len(conn.HeldIn())+len(conn.HeldPlain()) != 0 {
		t.Errorf("sequence numbers %d and %d", in, out)
	}
	raw, err := io.ReadAll(nc)
	if err != nil {
		t.Fatal(err)
	}
	conn.Rest() // the key is kept
	if got, err := openAll(conn, raw); string(got) != "early words" || err != io.EOF {
		t.Fatalf("%q, %v", got, err)
	}
}

func TestTLS12LibraryThatGoesTooFarIsRefused(t *testing.T) {
	_, server, config := old(t, suite12IDs[0])
	for name, library := range map[string]handshakerFunc{
		"reads on": func(ctx context.Context, gate net.Conn, p tlsstate.Params) (tlsstate.Result, error) {
			r, err := tlsstate.Std{}.Handshake(ctx, gate, p)
			io.ReadFull(gate, make([]byte, 5+8+len("words")+16)) // one whole record
			return r, err
		},
		"keeps the secrets": func(ctx context.Context, gate net.Conn, p tlsstate.Params) (tlsstate.Result, error) {
			p.KeyLog = io.Discard
			return tlsstate.Std{}.Handshake(ctx, gate, p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := config
			config.Handshaker = library
			nc := serve(t, server, false, func(tc *tls.Conn) error {
				io.WriteString(tc, "words")
				io.Copy(io.Discard, tc)
				return nil
			})
			if _, err := tlsstate.Client(background(t), nc, config); !errors.Is(err, tlsstate.ErrHandover) {
				t.Fatal(err)
			}
		})
	}
}

// The server's choice is in the sentence, and no key is exchanged with it.
func TestSuitesWithoutAEADOrForwardSecrecyAreNamed(t *testing.T) {
	for _, suite := range []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256,
		tls.TLS_RSA_WITH_AES_256_GCM_SHA384, tls.TLS_RSA_WITH_AES_128_CBC_SHA} {
		name := tls.CipherSuiteName(suite)
		t.Run(name, func(t *testing.T) {
			_, server, config := old(t, suite)
			_, err := tlsstate.Client(background(t), serve(t, server, false, nil), config)
			var refused *tlsstate.SuiteError
			if !errors.As(err, &refused) || refused.Suite != suite || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "ssl_ciphers") {
				t.Fatal(err)
			}
		})
	}
}

func TestBadRecordsOfTLS12AreRefused(t *testing.T) {
	cases := []struct {
		name  string
		bytes func(*tlsstate.Conn) []byte
		want  string
	}{
		{"change cipher spec", func(*tlsstate.Conn) []byte { return []byte{20, 3, 3, 0, 1, 1} }, "type 20"},
		{"plaintext alert", func(*tlsstate.Conn) []byte { return []byte{21, 3, 3, 0, 2, 2, 40} }, "too short"},
		{"too long by its header alone", func(*tlsstate.Conn) []byte { return []byte{23, 3, 3, 0x41, 1} }, "record_overflow"},
		{"plaintext too long", func(s *tlsstate.Conn) []byte { return s.SealRaw(nil, 23, make([]byte, 16385)) }, "record_overflow"},
		{"other version", func(s *tlsstate.Conn) []byte { b := s.SealRaw(nil, 23, []byte("x")); b[2] = 1; return b }, "bad_record_mac"},
		{"type changed", func(s *tlsstate.Conn) []byte { b := s.SealRaw(nil, 23, []byte("x")); b[0] = 21; return b }, "bad_record_mac"},
		{"hello request", func(s *tlsstate.Conn) []byte { return s.SealRaw(nil, 22, message(0, nil)) }, "negotiate TLS anew"},
		{"client hello", func(s *tlsstate.Conn) []byte { return s.SealRaw(nil, 22, message(1, make([]byte, 40))) }, "negotiate TLS anew"},
		{"key update", func(s *tlsstate.Conn) []byte { return s.SealRaw(nil, 22, keyUpdate) }, "type 24"},
		{"empty handshake record", func(s *tlsstate.Conn) []byte { return s.SealRaw(nil, 22, nil) }, "empty handshake"},
		{"half an alert", func(s *tlsstate.Conn) []byte { return s.SealRaw(nil, 21, []byte{2}) }, "alert of 1 bytes"},
	}
	for _, c := range cases {
		for _, suite := range suite12IDs[:3] {
			t.Run(c.name+"/"+tls.CipherSuiteName(suite), func(t *testing.T) {
				client, server := pair(t, suite)
				_, _, err := client.Open(c.bytes(server))
				var broke *tlsstate.ProtocolError
				if !errors.As(err, &broke) || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("error %v", err)
				}
				last, failed := client.AppendAlert(nil, err)
				if failed != nil {
					t.Fatal(failed)
				}
				_, err = openAll(server, last)
				var told *tlsstate.AlertError
				if broke.Alert != 100 && (!errors.As(err, &told) || told.Code != broke.Alert) {
					t.Errorf("the peer is told %v", err)
				}
			})
		}
	}
}

func TestWarningsOfTLS12AreBounded(t *testing.T) {
	client, server := pair(t, suite12IDs[0])
	var err error
	n := 0
	for ; err == nil && n < 1000; n++ {
		_, _, err = client.Open(server.SealRaw(nil, 21, []byte{1, 112}))
	}
	if n < 10 || n > 70 || !strings.Contains(err.Error(), "carry no data") {
		t.Fatal(n, err)
	}
}

// A key of TLS 1.2 cannot be changed: the connection asks for its retirement, goes on for a while, and then stops.
func TestKeysOfTLS12Retire(t *testing.T) {
	for _, receiving := range []bool{false, true} {
		t.Run(fmt.Sprintf("receiving %v", receiving), func(t *testing.T) {
			client, server := pair(t, suite12IDs[0])
			if receiving {
				client, server = server, client
			}
			client.SetLimit(10)
			server.SetLimit(10)
			last, n := error(nil), 0
			for ; last == nil && n < 100; n++ {
				var wire []byte
				if wire, last = client.Seal(nil, []byte("x")); last != nil {
					break
				}
				if _, err := openAll(server, wire); err != nil {
					t.Fatal(err)
				}
				if in, _ := server.Seq(); server.Retire() != (in >= 10) {
					t.Fatalf("after %d records Retire is %v", in, server.Retire())
				}
			}
			if !errors.Is(last, tlsstate.ErrExhausted) || n != 13 || !client.Retire() || client.Owes() || server.Owes() {
				t.Fatal(n, last)
			}
		})
	}
	client, server := pair(t, suite12IDs[0])
	if out, err := client.RequestKeyUpdate(nil, true); err != tlsstate.ErrNoKeyUpdate || len(out) != 0 {
		t.Fatal(err)
	}
	wire, err := client.Seal(nil, []byte("unharmed"))
	if got, failed := openAll(server, wire); string(got) != "unharmed" || err != nil || failed != nil {
		t.Fatal(err, failed)
	}
}
