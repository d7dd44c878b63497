package tlsstate_test

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"

	"pghandoff/tlsstate"
)

func jsonText(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func slogText(v any) string {
	var s strings.Builder
	slog.New(slog.NewTextHandler(&s, nil)).Info("x", "conn", v)
	slog.New(slog.NewJSONHandler(&s, nil)).Info("x", "conn", v)
	return s.String()
}

func TestStreamsPrintNoPlaintext(t *testing.T) {
	client, server := pair(t, suiteIDs[0])
	a, b := socketPair(t)
	s := tlsstate.NewStream(a, client)
	wire, _ := server.Seal(nil, []byte("xhunter2"))
	b.Write(wire)
	expect(t, s, "x")
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, v := range []any{s, []any{s}, struct{ s *tlsstate.Stream }{s}, &struct{ s []*tlsstate.Stream }{[]*tlsstate.Stream{s}}} {
			text := fmt.Sprintf(verb, v)
			for _, form := range []string{"%s", "%x", "%d"} {
				if strings.Contains(text, strings.Trim(fmt.Sprintf(form, []byte("hunter2")), "[]")) {
					t.Fatalf("%s prints %q", verb, text)
				}
			}
		}
	}
}

func TestAlertsHaveSentences(t *testing.T) {
	for code := range 256 {
		err := &tlsstate.AlertError{Code: uint8(code)}
		if !strings.Contains(err.Error(), fmt.Sprintf("alert %d", code)) || err.Name() == "" {
			t.Error(err)
		}
		if err.ClientCertificate() && !strings.Contains(err.Error(), "client certificate") {
			t.Error(err)
		}
		if strings.Count(err.Error(), " ") < 8 {
			t.Errorf("%s says not what to do", err)
		}
		err.FromClient = true
		if !strings.Contains(err.Error(), "the client ") || strings.Contains(err.Error(), "server") || err.ClientCertificate() {
			t.Error(err)
		}
		// What crypto/tls reports becomes the same.
		var alert *tlsstate.AlertError
		got := tlsstate.StdAlert(&net.OpError{Op: "remote error", Err: tls.AlertError(code)})
		if !errors.As(got, &alert) || alert.Code != uint8(code) {
			t.Error(got)
		}
		var broke *tlsstate.ProtocolError
		got = tlsstate.StdAlert(fmt.Errorf("x: %w", &net.OpError{Op: "local error", Err: tls.AlertError(code)}))
		if !errors.As(got, &broke) || broke.Alert != uint8(code) {
			t.Error(got)
		}
	}
	if got := tlsstate.StdAlert(os.ErrClosed); got != os.ErrClosed {
		t.Error(got)
	}
}

func TestKeyLogTakesEachSecretOnce(t *testing.T) {
	log := tlsstate.KeyLog()
	for _, c := range []struct {
		line string
		ok   bool
	}{
		{"CLIENT_HANDSHAKE_TRAFFIC_SECRET 00 00\n", true}, {"nonsense\n", true}, {"CLIENT_TRAFFIC_SECRET_0 00 zz\n", false},
		{"CLIENT_TRAFFIC_SECRET_0 00 0011\n", true}, {"CLIENT_TRAFFIC_SECRET_0 00 0011\n", false},
		{"CLIENT_RANDOM 22 0011\n", true}, {"CLIENT_RANDOM 22 0011\n", false}, {"CLIENT_RANDOM zz 0011\n", false},
		{"SERVER_TRAFFIC_SECRET_0 00 0011\n", true}, {"SERVER_TRAFFIC_SECRET_0 00 0011\n", false},
	} {
		n, err := log.Write([]byte(c.line))
		if (err == nil) != c.ok || c.ok && n != len(c.line) {
			t.Errorf("%q: %v", c.line, err)
		}
		if err != nil && strings.Contains(err.Error(), "0011") {
			t.Error("a secret is in the error")
		}
	}
}
