package tlsstate_test

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"pghandoff/tlsstate"
)

var suiteIDs = []uint16{tls.TLS_AES_128_GCM_SHA256, tls.TLS_AES_256_GCM_SHA384, tls.TLS_CHACHA20_POLY1305_SHA256}

var suite12IDs = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
	tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

// recordSuites are those whose records differ: the key exchange of TLS 1.2 does not matter to them.
var recordSuites = append(slices.Clone(suiteIDs), suite12IDs[:3]...)

// pair is a client's and a server's Conn with each other's keys.
func pair(t testing.TB, suite uint16) (client, server *tlsstate.Conn) {
	t.Helper()
	if slices.Contains(suite12IDs, suite) {
		return pair12(t, suite)
	}
	size := 32
	if suite == tls.TLS_AES_256_GCM_SHA384 {
		size = 48
	}
	a, b := make([]byte, size), make([]byte, size)
	rand.Read(a)
	rand.Read(b)
	client, err := tlsstate.NewTestConn(false, suite, a, b)
	if err != nil {
		t.Fatal(err)
	}
	server, err = tlsstate.NewTestConn(true, suite, b, a)
	if err != nil {
		t.Fatal(err)
	}
	return client, server
}

// pair12 is pair for TLS 1.2.
func pair12(t testing.TB, suite uint16) (client, server *tlsstate.Conn) {
	t.Helper()
	secrets := make([]byte, 48+32+32)
	rand.Read(secrets)
	var both [2]*tlsstate.Conn
	for i := range both {
		c, err := tlsstate.NewTestConn12(i == 1, suite, secrets[:48], secrets[48:80], secrets[80:])
		if err != nil {
			t.Fatal(err)
		}
		both[i] = c
	}
	return both[0], both[1]
}

// openAll opens every record in buf and returns their data.
func openAll(c *tlsstate.Conn, buf []byte) (data []byte, err error) {
	for len(buf) > 0 {
		plain, n, err := c.Open(buf)
		data = append(data, plain...)
		if err != nil {
			return data, err
		}
		if n == 0 {
			return data, fmt.Errorf("%d bytes are no whole record", len(buf))
		}
		buf = buf[n:]
	}
	return data, nil
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestSealedDataOpens(t *testing.T) {
	for _, suite := range recordSuites {
		for _, size := range []int{0, 1, 100, 16383, 16384, 16385, 100_000} {
			t.Run(fmt.Sprintf("%s/%d", tls.CipherSuiteName(suite), size), func(t *testing.T) {
				client, server := pair(t, suite)
				data := make([]byte, size)
				rand.Read(data)
				sealed, err := client.Seal([]byte("before"), data)
				if err != nil {
					t.Fatal(err)
				}
				if want := tlsstate.SealedLen(size); len(sealed)-6 > want {
					t.Errorf("%d bytes sealed, more than SealedLen %d", len(sealed)-6, want)
				}
				got, err := openAll(server, sealed[6:])
				if err != nil || !bytes.Equal(got, data) {
					t.Errorf("opened %d bytes, error %v", len(got), err)
				}
			})
		}
	}
}

func TestOpenWaitsForAWholeRecord(t *testing.T) {
	client, server := pair(t, suiteIDs[0])
	sealed, _ := client.Seal(nil, []byte("select 1"))
	for i := range sealed {
		plain, n, err := server.Open(sealed[:i:i])
		if plain != nil || n != 0 || err != nil {
			t.Fatalf("with %d bytes: %q, %d, %v", i, plain, n, err)
		}
		if need := tlsstate.Need(sealed[:i]); i < 5 && need != 5-i || i >= 5 && need != len(sealed)-i {
			t.Fatalf("with %d bytes Need is %d", i, need)
		}
	}
	if plain, n, err := server.Open(sealed); string(plain) != "select 1" || n != len(sealed) || err != nil {
		t.Fatal(plain, n, err)
	}
}

func TestBadRecordsAreRefused(t *testing.T) {
	header := func(kind byte, n int) []byte {
		return append([]byte{kind, 3, 3, byte(n >> 8), byte(n)}, make([]byte, 64)...)
	}
	cases := []struct {
		name  string
		bytes func(*tlsstate.Conn) []byte
		want  string
	}{
		{"too long by its header alone", func(*tlsstate.Conn) []byte { return header(23, 16384+257)[:5] }, "record_overflow"},
		{"too long and of a wrong type", func(*tlsstate.Conn) []byte { return header(99, 65535)[:5] }, "record_overflow"},
		{"too short", func(*tlsstate.Conn) []byte { return header(23, 16) }, "bad_record_mac"},
		{"change cipher spec", func(*tlsstate.Conn) []byte { return []byte{20, 3, 3, 0, 1, 1} }, "unexpected_message"},
		{"plaintext alert", func(*tlsstate.Conn) []byte { return []byte{21, 3, 3, 0, 2, 2, 40} }, "unexpected_message"},
		{"not for these keys", func(*tlsstate.Conn) []byte { return header(23, 64)[:69] }, "bad_record_mac"},
		{"padding only", func(s *tlsstate.Conn) []byte { return s.SealRaw(nil, 0, make([]byte, 10)) }, "padding only"},
		{"inner plaintext too long", func(s *tlsstate.Conn) []byte { return s.SealRaw(nil, 23, make([]byte, 16385)) }, "record_overflow"},
		{"unknown inner type", func(s *tlsstate.Conn) []byte { return s.SealRaw(nil, 24, []byte("x")) }, "type 24"},
		{"protected change cipher spec", func(s *tlsstate.Conn) []byte { return s.SealRaw(nil, 20, []byte{1}) }, "type 20"},
		{"empty handshake record", func(s *tlsstate.Conn) []byte { return s.SealRaw(nil, 22, nil) }, "empty handshake"},
		{"half an alert", func(s *tlsstate.Conn) []byte { return s.SealRaw(nil, 21, []byte{2}) }, "alert of 1 bytes"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			client, server := pair(t, suiteIDs[0])
			_, _, err := client.Open(c.bytes(server))
			var broke *tlsstate.ProtocolError
			if !errors.As(err, &broke) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v", err)
			}
			if _, _, again := client.Open(nil); !errors.Is(again, tlsstate.ErrDead) || !errors.Is(again, err) {
				t.Errorf("Open afterwards: %v", again)
			}
			if _, again := client.Seal(nil, []byte("x")); !errors.Is(again, tlsstate.ErrDead) {
				t.Errorf("Seal afterwards: %v", again)
			}
			last, failed := client.AppendAlert(nil, err)
			if failed != nil {
				t.Fatal(failed)
			}
			_, err = openAll(server, last)
			var told *tlsstate.AlertError
			if !errors.As(err, &told) || told.Code != broke.Alert {
				t.Errorf("the peer is told %v", err)
			}
			if twice, _ := client.AppendAlert(nil, broke); len(twice) != 0 {
				t.Error("a second alert")
			}
		})
	}
}

func TestPaddingIsTakenOff(t *testing.T) {
	client, server := pair(t, suiteIDs[0])
	padded := append([]byte("row"), 23, 0, 0, 0, 0) // content | type | zeros; the last zero is written as the type
	plain, _, err := client.Open(server.SealRaw(nil, 0, padded))
	if string(plain) != "row" || err != nil {
		t.Fatalf("%q, %v", plain, err)
	}
	full := append(bytes.Repeat([]byte("x"), tlsstate.MaxPlain-1), 23, 0)
	if plain, _, err = client.Open(server.SealRaw(nil, 0, full[:tlsstate.MaxPlain])); len(plain) != tlsstate.MaxPlain-1 || err != nil {
		t.Fatalf("%d bytes, %v", len(plain), err)
	}
}

func TestReplayIsRefused(t *testing.T) {
	client, server := pair(t, suiteIDs[0])
	sealed, _ := server.Seal(nil, []byte("once"))
	if _, err := openAll(client, bytes.Clone(sealed)); err != nil {
		t.Fatal(err)
	}
	if _, err := openAll(client, sealed); err == nil {
		t.Fatal("opened twice")
	}
}

func TestCloseNotifyClosesOneDirection(t *testing.T) {
	client, server := pair(t, suiteIDs[0])
	last, err := server.AppendCloseNotify(nil)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := server.AppendCloseNotify(nil); len(again) != 0 || err != nil {
		t.Error("close_notify twice")
	}
	if _, n, err := client.Open(last); err != io.EOF || n != len(last) {
		t.Fatal(n, err)
	}
	if _, _, err := client.Open(nil); err != io.EOF {
		t.Fatal(err)
	}
	if _, err := server.Seal(nil, []byte("x")); err != tlsstate.ErrSendClosed {
		t.Fatal(err)
	}
	sealed, err := client.Seal(nil, []byte("still here"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := openAll(server, sealed); string(got) != "still here" || err != nil {
		t.Fatal(got, err)
	}
}

func TestSequenceNumbersRunOut(t *testing.T) {
	client, server := pair(t, tls.TLS_CHACHA20_POLY1305_SHA256)
	for _, c := range []*tlsstate.Conn{client, server} {
		c.SetLimit(math.MaxUint64)
		c.SetSeq(math.MaxUint64)
	}
	if out, err := client.Seal(nil, []byte("x")); err == nil || len(out) != 0 {
		t.Fatal("sealed with the last sequence number")
	}
	if out, err := client.AppendAlert(nil, errors.New("over")); err != nil || len(out) != 0 {
		t.Fatal("an alert after sealing failed", err)
	}
	if _, _, err := server.Open(append([]byte{23, 3, 3, 0, 32}, make([]byte, 32)...)); err == nil {
		t.Fatal("opened with the last sequence number")
	}
}

func TestHeldBytesAreCopiesAndBounded(t *testing.T) {
	client, _ := pair(t, suiteIDs[0])
	cases := []struct {
		name string
		hold func([]byte) error
		held func() []byte
		most int
	}{
		{"in", client.HoldIn, client.HeldIn, tlsstate.MaxHeldIn},
		{"plain", client.HoldPlain, client.HeldPlain, tlsstate.MaxPlain},
		{"out", client.HoldOut, client.HeldOut, tlsstate.MaxHeldOut},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := []byte("abcdef")
			if err := c.hold(b); err != nil {
				t.Fatal(err)
			}
			b[0] = 'X'
			if string(c.held()) != "abcdef" {
				t.Errorf("held %q: aliases the caller's buffer", c.held())
			}
			if err := c.hold(c.held()[2:]); err != nil || string(c.held()) != "cdef" {
				t.Errorf("a rest is held as %q, %v", c.held(), err)
			}
			if err := c.hold(make([]byte, c.most+1)); !errors.Is(err, tlsstate.ErrTooMuchHeld) || string(c.held()) != "cdef" {
				t.Errorf("error %v, held %d bytes", err, len(c.held()))
			}
			if err := c.hold(make([]byte, c.most)); err != nil {
				t.Error(err)
			}
			if c.hold(nil); c.held() != nil {
				t.Error("not let go of")
			}
		})
	}
}

func TestRecordsCostNoAllocation(t *testing.T) {
	for _, suite := range recordSuites {
		client, server := pair(t, suite)
		data := make([]byte, 16<<10)
		buf := make([]byte, 0, tlsstate.SealedLen(len(data)))
		allocs := testing.AllocsPerRun(200, func() {
			sealed, err := client.Seal(buf, data)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := server.Open(sealed); err != nil {
				t.Fatal(err)
			}
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations a record", tls.CipherSuiteName(suite), allocs)
		}
	}
}

func BenchmarkRecord(b *testing.B) {
	for _, suite := range recordSuites {
		for _, size := range []int{100, 1 << 10, 16 << 10} {
			client, server := pair(b, suite)
			client.SetLimit(math.MaxUint64)
			server.SetLimit(math.MaxUint64)
			data := make([]byte, size)
			buf := make([]byte, 0, tlsstate.SealedLen(size))
			name := fmt.Sprintf("%s/%d", tls.CipherSuiteName(suite), size)
			b.Run("Seal/"+name, func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(size))
				for b.Loop() {
					if _, err := client.Seal(buf, data); err != nil {
						b.Fatal(err)
					}
				}
			})
			sealed, _ := server.Seal(nil, data)
			b.Run("Open/"+name, func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(size))
				work := make([]byte, len(sealed))
				seq, _ := server.Seq()
				for b.Loop() {
					copy(work, sealed)
					client.SetSeq(seq) // the same record each time
					if _, _, err := client.Open(work); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
