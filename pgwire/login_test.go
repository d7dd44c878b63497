package pgwire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/xdg-go/scram"

	"pghandoff/pgwire"
)

const ready = "R\x00\x00\x00\x08\x00\x00\x00\x00" + "S\x00\x00\x00\x11TimeZone\x00UTC\x00" + "K\x00\x00\x00\x0c\x00\x00\x00\x07\x00\x00\x00\x09" + "Z\x00\x00\x00\x05I"

func authFrame(code uint32, data string) string {
	return frame('R', string(binary.BigEndian.AppendUint32(nil, code))+data)
}

func errorFrame(code, message string) string {
	return string(pgwire.AppendError(nil, pgwire.Notice{Severity: "FATAL", Code: code, Message: message}))
}

// script is a connection whose server says what is written down, whatever it
// is told.
type script struct {
	io.Reader
	sent bytes.Buffer
}

func (s *script) Write(p []byte) (int, error) { return s.sent.Write(p) }

func TestLoginRefusesWhatAServerMayNotSay(t *testing.T) {
	for _, c := range []struct {
		name, says string
		cfg        pgwire.LoginConfig
		want       error
		sentence   string
	}{
		{"clear text without TLS", authFrame(3, ""), pgwire.LoginConfig{Password: "hush"}, pgwire.ErrClearText, ""},
		{"clear text without a password", authFrame(3, ""), pgwire.LoginConfig{Encrypted: true}, pgwire.ErrNoPassword, ""},
		{"MD5 where binding is required", authFrame(5, "salt"), pgwire.LoginConfig{Password: "hush", ChannelBinding: pgwire.BindingRequire}, pgwire.ErrBindingRequired, ""},
		{"trust where binding is required", ready, pgwire.LoginConfig{Password: "hush", ChannelBinding: pgwire.BindingRequire}, pgwire.ErrBindingRequired, ""},
		{"plain SCRAM where binding is required", authFrame(10, "SCRAM-SHA-256\x00\x00"), pgwire.LoginConfig{Password: "hush", Encrypted: true, EndpointBinding: []byte("h"), ChannelBinding: pgwire.BindingRequire}, pgwire.ErrBindingRequired, ""},
		{"binding offered without TLS", authFrame(10, "SCRAM-SHA-256-PLUS\x00\x00"), pgwire.LoginConfig{Password: "hush"}, pgwire.ErrProtocol, "unencrypted"},
		{"mechanisms without a terminator", authFrame(10, "SCRAM-SHA-256"), pgwire.LoginConfig{Password: "hush"}, pgwire.ErrProtocol, "mechanisms"},
		{"unknown mechanisms", authFrame(10, "OAUTHBEARER\x00\x00"), pgwire.LoginConfig{Password: "hush"}, nil, "SCRAM-SHA-256"},
		{"absurd iterations", authFrame(10, "SCRAM-SHA-256\x00\x00") + authFrame(11, "r=x,s=eA==,i=2000000000"), pgwire.LoginConfig{Password: "hush"}, pgwire.ErrProtocol, "iterations"},
		{"no iterations", authFrame(10, "SCRAM-SHA-256\x00\x00") + authFrame(11, "r=x,s=eA=="), pgwire.LoginConfig{Password: "hush"}, pgwire.ErrProtocol, "iteration"},
		{"nonce of somebody else", authFrame(10, "SCRAM-SHA-256\x00\x00") + authFrame(11, "r=x,s=eA==,i=4096"), pgwire.LoginConfig{Password: "hush"}, pgwire.ErrProtocol, "SCRAM"},
		{"SCRAM cut short by AuthenticationOk", authFrame(10, "SCRAM-SHA-256\x00\x00") + ready, pgwire.LoginConfig{Password: "hush"}, pgwire.ErrProtocol, "without proving"},
		{"final before first", authFrame(10, "SCRAM-SHA-256\x00\x00") + authFrame(12, "v=eA=="), pgwire.LoginConfig{Password: "hush"}, pgwire.ErrProtocol, "order"},
		{"SASL out of the blue", authFrame(11, "r=x"), pgwire.LoginConfig{Password: "hush"}, pgwire.ErrProtocol, ""},
		{"GSSAPI", authFrame(7, ""), pgwire.LoginConfig{Password: "hush"}, nil, "method 7"},
		{"two methods", authFrame(5, "salt") + authFrame(5, "salt"), pgwire.LoginConfig{Password: "hush"}, pgwire.ErrProtocol, "second"},
		{"a row", frame('D', "\x00\x01\xff\xff\xff\xfe"), pgwire.LoginConfig{}, pgwire.ErrProtocol, ""},
		{"a row after authentication", ready[:9] + frame('D', "\x00\x01\xff\xff\xff\xfe"), pgwire.LoginConfig{}, pgwire.ErrProtocol, ""},
		{"in a transaction from the start", ready[:len(ready)-1] + "T", pgwire.LoginConfig{}, pgwire.ErrProtocol, "idle"},
		{"length of 2 GB", "R\x7f\xff\xff\xff", pgwire.LoginConfig{}, pgwire.ErrProtocol, "length"},
		{"length below 4", "R\x00\x00\x00\x03", pgwire.LoginConfig{}, pgwire.ErrProtocol, "length"},
		{"nothing", "", pgwire.LoginConfig{}, nil, "closed the connection"},
		{"half a message", ready[:12], pgwire.LoginConfig{}, io.ErrUnexpectedEOF, ""},
		{"HTTP", "HTTP/1.1 400 Bad Request\r\n\r\n", pgwire.LoginConfig{}, pgwire.ErrProtocol, ""},
		{"negotiation of 3.0", frame('v', "\x00\x03\x00\x00\x00\x00\x00\x00"), pgwire.LoginConfig{}, pgwire.ErrProtocol, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := pgwire.Login(&script{Reader: strings.NewReader(c.says)}, c.cfg)
			if s != nil || err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.sentence) {
				t.Fatalf("got %v, %v", s, err)
			}
			if strings.Contains(err.Error(), "hush") {
				t.Errorf("the password stands in %q", err)
			}
		})
	}
}

func TestLoginTellsTheServersOwnWords(t *testing.T) {
	_, err := pgwire.Login(&script{Reader: strings.NewReader(frame('N', "SNOTICE\x00Mhello\x00\x00") + errorFrame("28P01", "no way"))}, pgwire.LoginConfig{})
	var e *pgwire.ServerError
	if !errors.As(err, &e) || e.Code != "28P01" || e.Message != "no way" || e.Severity != "FATAL" {
		t.Fatalf("got %v", err)
	}
	_, err = pgwire.Login(&script{Reader: strings.NewReader(frame('E', "Mno code\x00\x00"))}, pgwire.LoginConfig{})
	if !errors.As(err, &e) || e.Code != "XX000" {
		t.Fatalf("an error without a code: %v", err)
	}
}

// closed is a connection whose other side has said something and closed.
type closed struct{ io.Reader }

func (closed) Write([]byte) (int, error) { return 0, syscall.ECONNRESET }

func TestLoginTellsWhatAServerSaidBeforeItClosed(t *testing.T) {
	_, err := pgwire.Login(closed{strings.NewReader(errorFrame("53300", "too many clients"))}, pgwire.LoginConfig{})
	var e *pgwire.ServerError
	if !errors.As(err, &e) || e.Code != "53300" {
		t.Errorf("got %v", err)
	}
	if _, err = pgwire.Login(closed{strings.NewReader("")}, pgwire.LoginConfig{}); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v", err)
	}
}

func TestLoginReadsUpToReadyForQueryAndNotBeyond(t *testing.T) {
	in := strings.NewReader(ready + "more")
	s, err := pgwire.Login(&script{Reader: in}, pgwire.LoginConfig{User: "app"})
	if err != nil {
		t.Fatal(err)
	}
	if s.PID != 7 || !bytes.Equal(s.Secret, []byte{0, 0, 0, 9}) || s.Method != "trust" || len(s.Parameters) != 1 || s.Parameters[0].Value != "UTC" {
		t.Errorf("got %+v", s)
	}
	if in.Len() != len("more") {
		t.Errorf("%d bytes are left, want %d", in.Len(), len("more"))
	}
}

// The server side is the same library in its server role; PostgreSQL itself is
// asked in the end-to-end tests.
func TestLoginByScramWithAndWithoutBinding(t *testing.T) {
	binding := []byte("hash of the server certificate")
	for _, c := range []struct {
		name, offer string
		mode        pgwire.BindingMode
		method      string
	}{
		{"binding preferred and offered", "SCRAM-SHA-256-PLUS\x00SCRAM-SHA-256\x00\x00", pgwire.BindingPrefer, "scram-sha-256-plus"},
		{"binding preferred and not offered", "SCRAM-SHA-256\x00\x00", pgwire.BindingPrefer, "scram-sha-256"},
		{"binding required", "SCRAM-SHA-256-PLUS\x00SCRAM-SHA-256\x00\x00", pgwire.BindingRequire, "scram-sha-256-plus"},
		{"binding disabled", "SCRAM-SHA-256-PLUS\x00SCRAM-SHA-256\x00\x00", pgwire.BindingDisable, "scram-sha-256"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			defer ours.Close()
			ours.SetDeadline(time.Now().Add(10 * time.Second))
			theirs.SetDeadline(time.Now().Add(10 * time.Second))
			served := make(chan error, 1)
			go func() { served <- serveSCRAM(theirs, c.offer, binding) }() // ends with the login or its deadline
			s, err := pgwire.Login(ours, pgwire.LoginConfig{User: "app", Password: "pässword", Encrypted: true, ChannelBinding: c.mode, EndpointBinding: binding})
			if err != nil || s.Method != c.method {
				t.Fatalf("got %+v, %v; server: %v", s, err, <-served)
			}
			if err := <-served; err != nil {
				t.Fatal(err)
			}
		})
	}
}

func serveSCRAM(c net.Conn, offer string, binding []byte) error {
	defer c.Close()
	client, err := scram.SHA256.NewClient("", "pässword", "")
	if err != nil {
		return err
	}
	stored, err := client.GetStoredCredentialsWithError(scram.KeyFactors{Salt: "0123456789abcdef", Iters: 4096})
	if err != nil {
		return err
	}
	server, err := scram.SHA256.NewServer(func(string) (scram.StoredCredentials, error) { return stored, nil })
	if err != nil {
		return err
	}
	var field [4]byte
	if _, err := io.ReadFull(c, field[:]); err != nil {
		return err
	}
	n, err := pgwire.StartupLength(field)
	if err != nil {
		return err
	}
	if _, err := io.ReadFull(c, make([]byte, n-4)); err != nil {
		return err
	}
	io.WriteString(c, authFrame(10, offer))
	r := pgwire.NewFrameReader(c, 0)
	_, body, err := r.Next()
	if err != nil {
		return err
	}
	mechanism, rest, _ := strings.Cut(string(body), "\x00")
	conv := server.NewConversation()
	if strings.Contains(offer, "PLUS") {
		conv = server.NewConversationWithChannelBinding(scram.ChannelBinding{Type: scram.ChannelBindingTLSServerEndpoint, Data: binding})
	}
	_ = mechanism
	first, err := conv.Step(rest[4:])
	if err != nil {
		return err
	}
	io.WriteString(c, authFrame(11, first))
	if _, body, err = r.Next(); err != nil {
		return err
	}
	final, err := conv.Step(string(body))
	if err != nil {
		return err
	}
	_, err = io.WriteString(c, authFrame(12, final)+ready)
	return err
}

// Whatever a server says at login: no panic, no endless call, and no session
// unless it said so.
func FuzzLogin(f *testing.F) {
	f.Add([]byte(ready), true)
	f.Add([]byte(authFrame(10, "SCRAM-SHA-256\x00\x00")+authFrame(11, "r=x,s=eA==,i=4096")), true)
	f.Add([]byte(authFrame(5, "salt")+ready), false)
	f.Add([]byte(errorFrame("28P01", "no")), false)
	f.Fuzz(func(t *testing.T, says []byte, encrypted bool) {
		s, err := pgwire.Login(&script{Reader: bytes.NewReader(says)}, pgwire.LoginConfig{User: "u", Password: "p", Encrypted: encrypted, EndpointBinding: []byte("h")})
		if (s == nil) == (err == nil) {
			t.Fatalf("got %v, %v", s, err)
		}
	})
}
