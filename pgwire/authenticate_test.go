package pgwire_test

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/xdg-go/scram"

	"pghandoff/pgwire"
)

// verifierFor makes a verifier as a server keeps it, by the library's client.
func verifierFor(t *testing.T, password string) string {
	t.Helper()
	c, err := scram.SHA256.NewClient("", password, "")
	if err != nil {
		t.Fatal(err)
	}
	k, err := c.GetStoredCredentialsWithError(scram.KeyFactors{Salt: "0123456789abcdef", Iters: 4096})
	if err != nil {
		t.Fatal(err)
	}
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", k.Iters, b64([]byte(k.Salt)), b64(k.StoredKey), b64(k.ServerKey))
}

// prover is a client that proves a password over conn.
type prover struct {
	mechanism string
	converse  func(*scram.Client) *scram.ClientConversation
}

var (
	unbound = prover{"SCRAM-SHA-256", (*scram.Client).NewConversation}
	hoping  = prover{"SCRAM-SHA-256", (*scram.Client).NewConversationAdvertisingChannelBinding}
)

func boundTo(hash string, mechanism string) prover {
	return prover{mechanism, func(c *scram.Client) *scram.ClientConversation {
		return c.NewConversationWithChannelBinding(scram.ChannelBinding{Type: scram.ChannelBindingTLSServerEndpoint, Data: []byte(hash)})
	}}
}

// prove does the client's side and returns the mechanisms offered.
func (p prover) prove(conn net.Conn, password string) (offer string, err error) {
	frames := pgwire.NewFrameReader(conn, 1<<16)
	client, err := scram.SHA256.NewClient("", password, "")
	if err != nil {
		return "", err
	}
	conversation := p.converse(client)
	step := ""
	for i := range 3 {
		typ, body, err := frames.Next()
		if err != nil || typ != 'R' {
			return offer, fmt.Errorf("message %q, %v", typ, err)
		}
		if i == 0 {
			offer = string(body[4:])
		} else {
			step = string(body[4:])
		}
		out, err := conversation.Step(step)
		if err != nil || i == 2 {
			return offer, err
		}
		payload := []byte(out)
		if i == 0 {
			payload = append(append([]byte(p.mechanism), 0), binary.BigEndian.AppendUint32(nil, uint32(len(out)))...)
			payload = append(payload, out...)
		}
		if _, err := conn.Write(append(binary.BigEndian.AppendUint32([]byte{'p'}, uint32(len(payload)+4)), payload...)); err != nil {
			return offer, err
		}
	}
	return offer, nil
}

func TestAuthenticateByPassword(t *testing.T) {
	v, err := pgwire.ParseVerifier(verifierFor(t, "säsame"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		who      prover
		password string
		endpoint string
		want     error // nil: let in
	}{
		"the password":                        {unbound, "säsame", "", nil},
		"another one":                         {unbound, "sesame", "", pgwire.ErrWrongPassword},
		"bound":                               {boundTo("hash", "SCRAM-SHA-256-PLUS"), "säsame", "hash", nil},
		"bound to another certificate":        {boundTo("other", "SCRAM-SHA-256-PLUS"), "säsame", "hash", pgwire.ErrWrongPassword},
		"not bound where it could be":         {unbound, "säsame", "hash", nil},
		"it believes that we cannot bind":     {hoping, "säsame", "hash", pgwire.ErrWrongPassword},
		"it could bind and we cannot":         {hoping, "säsame", "", nil},
		"bound by the mechanism without":      {boundTo("hash", "SCRAM-SHA-256"), "säsame", "hash", pgwire.ErrProtocol},
		"a binding that was not offered":      {boundTo("hash", "SCRAM-SHA-256-PLUS"), "säsame", "", pgwire.ErrProtocol},
		"unbound by the mechanism that binds": {prover{"SCRAM-SHA-256-PLUS", (*scram.Client).NewConversation}, "säsame", "hash", pgwire.ErrWrongPassword},
		"another mechanism":                   {prover{"PLAIN", (*scram.Client).NewConversation}, "säsame", "", pgwire.ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			defer theirs.Close()
			done := make(chan error, 1)
			go func() { // ends with the exchange; waited for below
				defer ours.Close()
				done <- pgwire.Authenticate(ours, v, []byte(c.endpoint))
			}()
			offer, proved := c.who.prove(theirs, c.password)
			if err := <-done; !errors.Is(err, c.want) || (err == nil) != (proved == nil) || (c.want == nil) != (err == nil) {
				t.Errorf("%v, and the client says %v; want %v", err, proved, c.want)
			}
			if strings.Contains(offer, "PLUS") != (c.endpoint != "") {
				t.Errorf("offered %q", offer)
			}
		})
	}
}

func TestMockVerifierLooksLikeOneAndFitsNoPassword(t *testing.T) {
	a, b := pgwire.MockVerifier([]byte("secret"), "a"), pgwire.MockVerifier([]byte("secret"), "b")
	for _, v := range []pgwire.Verifier{a, b} {
		ours, theirs := net.Pipe()
		done := make(chan error, 1)
		go func() { done <- pgwire.Authenticate(ours, v, nil) }() // ends with the exchange
		go unbound.prove(theirs, "x")                             // ends with theirs
		if err := <-done; !errors.Is(err, pgwire.ErrWrongPassword) {
			t.Errorf("got %v", err)
		}
		theirs.Close()
	}
	if again := pgwire.MockVerifier([]byte("secret"), "a"); !again.Equal(a) || a.Equal(b) {
		t.Error("the same user has different keys, or two users the same")
	}
}

func TestVerifierIsReadStrictlyAndNotShown(t *testing.T) {
	good := verifierFor(t, "x")
	v, err := pgwire.ParseVerifier(good)
	if err != nil {
		t.Fatal(err)
	}
	if s := fmt.Sprintf("%v %+v %s %x %#v", v, v, v, v, v); strings.ReplaceAll(s, "[redacted]", "") != "    " {
		t.Errorf("printed %s", s)
	}
	for _, bad := range []string{"", "hunter2", "md5" + strings.Repeat("0", 32), "SCRAM-SHA-256$", good[:len(good)-4], good + "x", strings.Replace(good, "4096", "0", 1),
		strings.Replace(good, "4096", "99999999", 1), strings.Replace(good, ":", ";", 1), strings.Replace(good, "SHA-256", "SHA-1", 1)} {
		if _, err := pgwire.ParseVerifier(bad); err == nil || bad != "" && strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzParseVerifier(f *testing.F) {
	f.Add("SCRAM-SHA-256$4096:MDEyMzQ1Njc4OWFiY2RlZg==$AAAA:AAAA")
	f.Fuzz(func(t *testing.T, s string) { pgwire.ParseVerifier(s) })
}
