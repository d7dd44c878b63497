package tlsstate_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"pghandoff/tlsstate"
)

// negotiated runs Client against a server that gives this answer to SSLRequest and then reads or closes.
func negotiated(t *testing.T, answer string, hangUp bool) (net.Conn, error) {
	t.Helper()
	client, server := socketPair(t)
	run(t, func() error {
		if err := answerSSLRequest(server, answer); err != nil || hangUp {
			return errors.Join(err, server.Close())
		}
		return nil
	})
	_, err := tlsstate.Client(background(t), client, tlsstate.Config{Host: "db1.example.com"})
	if err == nil {
		t.Fatal("no error")
	}
	return client, err
}

func TestAnswersToSSLRequest(t *testing.T) {
	cases := []struct {
		name, answer string
		hangUp       bool
		want         error
	}{
		{"not offered", "N", false, tlsstate.ErrNotOffered},
		{"error message", "E\x00\x00\x00\x20SFATAL\x00Mrun this\x00\x00", false, tlsstate.ErrRefused},
		{"something else", "HTTP/1.1 400 Bad Request", false, tlsstate.ErrNotPostgres},
		{"plaintext stuffed behind S", "SE\x00\x00\x00\x20SFATAL\x00Mrun this\x00\x00", false, tlsstate.ErrNotTLS},
		{"closed without an answer", "", true, io.ErrUnexpectedEOF},
		{"closed behind S", "S", true, io.ErrUnexpectedEOF},
		{"closed amid a record", "S\x16\x03\x03\x00\x50\x02", true, io.ErrUnexpectedEOF},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := negotiated(t, c.answer, c.hangUp)
			if !errors.Is(err, c.want) || strings.Contains(err.Error(), "run this") {
				t.Fatal(err)
			}
		})
	}
}

// After N the connection is at its start: nothing behind the N is read, nothing behind SSLRequest is written, and no
// deadline is left.
func TestPlaintextMayFollowNotOffered(t *testing.T) {
	client, server := socketPair(t)
	run(t, func() error {
		if err := answerSSLRequest(server, "Nnext"); err != nil {
			return err
		}
		got := make([]byte, 7)
		if _, err := io.ReadFull(server, got); err != nil || string(got) != "startup" {
			return errors.New("no start-up message: " + string(got))
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	_, err := tlsstate.Client(ctx, client, tlsstate.Config{Mode: tlsstate.Prefer})
	cancel()
	if !errors.Is(err, tlsstate.ErrNotOffered) {
		t.Fatal(err)
	}
	io.WriteString(client, "startup")
	got := make([]byte, 4)
	if _, err := io.ReadFull(client, got); string(got) != "next" || err != nil {
		t.Fatal(string(got), err)
	}
}

func TestSilentServerIsGivenUp(t *testing.T) {
	for _, answer := range []string{"", "S", "S\x16\x03\x03\x00\x50\x02"} {
		client, server := socketPair(t)
		run(t, func() error { return answerSSLRequest(server, answer) })
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		_, err := tlsstate.Client(ctx, client, tlsstate.Config{Host: "db1.example.com"})
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("deadline after %q: %v", answer, err)
		}

		client, other := socketPair(t)
		ctx, cancel = context.WithCancel(t.Context())
		run(t, func() error { defer cancel(); return answerSSLRequest(other, answer) })
		_, err = tlsstate.Client(ctx, client, tlsstate.Config{Host: "db1.example.com"})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("cancellation after %q: %v", answer, err)
		}
		if _, err := client.Write([]byte("x")); err != nil {
			t.Errorf("a deadline of Client is left: %v", err)
		}
	}
}

func TestConfigurationThatCannotBeMeantIsRefused(t *testing.T) {
	for name, config := range map[string]tlsstate.Config{
		"disable":              {Mode: tlsstate.Disable},
		"no such mode":         {Mode: 17},
		"no such negotiation":  {Host: "a", Negotiation: 5},
		"direct and prefer":    {Mode: tlsstate.Prefer, Negotiation: tlsstate.Direct},
		"verify-full nameless": {},
		"verify-ca, system":    {Mode: tlsstate.VerifyCA, Host: "a"},
		"lists unchecked":      {Mode: tlsstate.Require, Host: "a", Revocations: &tlsstate.Revocations{}},
		"TLS 1.1":              {Host: "a", MinVersion: tls.VersionTLS11},
		"newest before oldest": {Host: "a", MinVersion: tls.VersionTLS13, MaxVersion: tls.VersionTLS12},
		"TLS 1.4":              {Host: "a", MaxVersion: 0x0305},
	} {
		if _, err := tlsstate.Client(t.Context(), nil, config); err == nil { // no byte is written, or this would panic
			t.Error(name)
		}
	}
}

func TestModesReadAsTheyPrint(t *testing.T) {
	for m := tlsstate.VerifyFull; m <= tlsstate.Disable; m++ {
		if got, err := tlsstate.ParseMode(m.String()); got != m || err != nil {
			t.Error(m, got, err)
		}
	}
	for n := tlsstate.Postgres; n <= tlsstate.Direct; n++ {
		if got, err := tlsstate.ParseNegotiation(n.String()); got != n || err != nil {
			t.Error(n, got, err)
		}
	}
	for _, s := range []string{"", "REQUIRE", "verify_full"} {
		if m, err := tlsstate.ParseMode(s); err == nil || m != tlsstate.VerifyFull {
			t.Error(s, m)
		}
	}
	if _, err := tlsstate.ParseNegotiation(""); err == nil {
		t.Error("empty negotiation")
	}
}
