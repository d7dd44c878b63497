package pgwire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/xdg-go/scram"
)

// Verifier is a password as a server keeps it, from which the password cannot be
// had (PostgreSQL's pg_authid.rolpassword). It shows itself in no way of printing.
type Verifier struct{ keys *scram.StoredCredentials }

// Format hides the keys.
func (v Verifier) Format(f fmt.State, _ rune) { io.WriteString(f, "[redacted]") }

// maxSalt bounds a salt, in bytes. PostgreSQL's have 16.
const maxSalt = 1 << 10 // 1 KiB

// ParseVerifier reads "SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey", the
// latter three in base64. Errors quote nothing of it.
func ParseVerifier(s string) (Verifier, error) {
	rest, ok := strings.CutPrefix(s, mechanismSCRAM+"$")
	if !ok {
		return Verifier{}, errors.New("not a SCRAM-SHA-256 verifier: take it from pg_authid.rolpassword")
	}
	rounds, keys, ok1 := strings.Cut(rest, "$")
	count, salt, ok2 := strings.Cut(rounds, ":")
	stored, server, ok3 := strings.Cut(keys, ":")
	n, err := strconv.Atoi(count)
	if !ok1 || !ok2 || !ok3 || err != nil || n < 1 || n > maxIterations {
		return Verifier{}, errors.New("malformed SCRAM-SHA-256 verifier")
	}
	var parts [3][]byte
	for i, text := range []string{salt, stored, server} {
		if parts[i], err = base64.StdEncoding.DecodeString(text); err != nil {
			return Verifier{}, errors.New("malformed SCRAM-SHA-256 verifier")
		}
	}
	if len(parts[0]) == 0 || len(parts[0]) > maxSalt || len(parts[1]) != sha256.Size || len(parts[2]) != sha256.Size {
		return Verifier{}, errors.New("malformed SCRAM-SHA-256 verifier")
	}
	return Verifier{&scram.StoredCredentials{KeyFactors: scram.KeyFactors{Salt: string(parts[0]), Iters: n}, StoredKey: parts[1], ServerKey: parts[2]}}, nil
}

// MockVerifier returns one that no password fits, always the same for a user, so
// that a client cannot tell whether there is such a user. secret is the daemon's
// own.
func MockVerifier(secret []byte, user string) Verifier {
	of := func(what string) []byte {
		h := hmac.New(sha256.New, secret)
		h.Write([]byte(what + "\x00" + user))
		return h.Sum(nil)
	}
	return Verifier{&scram.StoredCredentials{KeyFactors: scram.KeyFactors{Salt: string(of("salt")[:16]), Iters: 4096}, StoredKey: of("stored"), ServerKey: of("server")}}
}

// ErrWrongPassword: the client does not know the password, or it, or somebody
// between us, has another view of the connection's TLS.
var ErrWrongPassword = errors.New("password authentication failed")

// Authenticate lets a client prove by SCRAM-SHA-256 that it knows the password of
// v (PostgreSQL's protocol chapter "SASL Authentication", RFC 5802, RFC 7677),
// from AuthenticationSASL to AuthenticationSASLFinal; AuthenticationOk is the
// caller's. endpoint is the hash of our certificate (tls-server-end-point, RFC
// 5929), so that channel binding can be offered; nil: it is not. c needs a
// deadline. Errors: [ErrWrongPassword], [ErrProtocol], those of c.
func Authenticate(c io.ReadWriter, v Verifier, endpoint []byte) error {
	offer := mechanismSCRAM + "\x00"
	if len(endpoint) > 0 {
		offer = mechanismPlus + "\x00" + offer
	}
	if _, err := c.Write(authentication(10, offer+"\x00")); err != nil {
		return err
	}
	frames := NewFrameReader(c, maxSCRAMMessage)
	first, err := readPassword(frames)
	if err != nil {
		return err
	}
	conversation, payload, err := v.converse(first, endpoint)
	if err != nil {
		return err
	}
	reply, err := conversation.Step(payload)
	if err != nil {
		return ErrWrongPassword // the library's error quotes parts of the exchange
	}
	if _, err := c.Write(authentication(11, reply)); err != nil {
		return err
	}
	last, err := readPassword(frames)
	if err != nil {
		return err
	}
	reply, err = conversation.Step(string(last))
	if err != nil || !conversation.Valid() {
		return ErrWrongPassword
	}
	_, err = c.Write(authentication(12, reply))
	return err
}

// authentication is an Authentication message: kind (32 bits) and what belongs to
// it.
func authentication(kind uint32, body string) []byte {
	out := binary.BigEndian.AppendUint32([]byte{'R'}, uint32(8+len(body)))
	return append(binary.BigEndian.AppendUint32(out, kind), body...)
}

func readPassword(frames *FrameReader) ([]byte, error) {
	typ, body, err := frames.Next()
	switch {
	case err != nil:
		return nil, err
	case typ != 'p':
		return nil, protocolErrorf("expected SASL response, got message type %d", typ)
	}
	return body, nil
}

// converse reads SASLInitialResponse: the name of a mechanism, a length (32 bits;
// -1: no payload) and the payload.
func (v Verifier) converse(first, endpoint []byte) (*scram.ServerConversation, string, error) {
	mechanism, rest, ok := cutString(first)
	if !ok || len(rest) < 4 || int(int32(binary.BigEndian.Uint32(rest))) != len(rest)-4 {
		return nil, "", protocolErrorf("malformed SASLInitialResponse")
	}
	payload := string(rest[4:])
	// The name within is ignored, as by PostgreSQL: the start-up message has named the user.
	server, err := scram.SHA256.NewServer(func(string) (scram.StoredCredentials, error) { return *v.keys, nil })
	if err != nil {
		return nil, "", err
	}
	switch {
	case mechanism == mechanismPlus && len(endpoint) > 0:
		return server.NewConversationWithChannelBindingRequired(endpointBinding(endpoint)), payload, nil
	case mechanism != mechanismSCRAM:
		return nil, "", protocolErrorf("client selected an invalid SASL authentication mechanism")
	case strings.HasPrefix(payload, "p"):
		return nil, "", protocolErrorf("the client binds to the channel with a mechanism that does not")
	case len(endpoint) > 0:
		return server.NewConversationWithChannelBinding(endpointBinding(endpoint)), payload, nil
	}
	return server.NewConversation(), payload, nil
}

func endpointBinding(hash []byte) scram.ChannelBinding {
	return scram.ChannelBinding{Type: scram.ChannelBindingTLSServerEndpoint, Data: hash}
}
