package pgwire

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgproto3/v2"
	"github.com/xdg-go/scram"
)

const (
	mechanismSCRAM = "SCRAM-SHA-256"
	mechanismPlus  = "SCRAM-SHA-256-PLUS"
	methodSCRAM    = "scram-sha-256"
	methodPlus     = "scram-sha-256-plus"
	// maxIterations bounds the PBKDF2 rounds that a server may make us do:
	// some 0.3 s of CPU. PostgreSQL's default is 4,096.
	maxIterations = 1_000_000
	// maxSCRAMMessage bounds a SASL payload, in bytes.
	maxSCRAMMessage = 4 << 10 // 4 KiB
)

// scramExchange is SCRAM-SHA-256 (RFC 5802, RFC 7677) as PostgreSQL uses it:
// the user name within is empty, since the start-up message has named it.
type scramExchange struct {
	conversation *scram.ClientConversation
	step         int
}

func (s *scramExchange) verified() bool { return s.conversation.Valid() }

// startSCRAM chooses a mechanism among those offered and sends the first
// message.
func (l *login) startSCRAM(offer []byte) error {
	if l.scram != nil || l.session.Method != "trust" {
		return protocolErrorf("the server asks for a second authentication")
	}
	if l.cfg.Password == "" {
		return ErrNoPassword
	}
	plain, plus, err := parseMechanisms(offer)
	if err != nil {
		return err
	}
	canBind := l.cfg.Encrypted && len(l.cfg.EndpointBinding) > 0 && l.cfg.ChannelBinding != BindingDisable
	if l.cfg.ChannelBinding == BindingRequire && !(canBind && plus) {
		return ErrBindingRequired
	}
	if plus && !l.cfg.Encrypted {
		return protocolErrorf("the server offers channel binding over an unencrypted connection")
	}
	client, err := scramClient(l.cfg.Password)
	if err != nil {
		return err
	}
	mechanism := mechanismSCRAM
	switch {
	case canBind && plus:
		mechanism, l.session.Method = mechanismPlus, methodPlus
		l.scram = &scramExchange{conversation: client.NewConversationWithChannelBinding(scram.ChannelBinding{
			Type: scram.ChannelBindingTLSServerEndpoint, Data: l.cfg.EndpointBinding})}
	case !plain:
		return fmt.Errorf("the server offers no SASL mechanism that can be used here: need %s", mechanismSCRAM)
	case canBind:
		// "y": we could bind, and the server said it cannot. Were that a
		// lie of someone in between, the server refuses.
		l.session.Method = methodSCRAM
		l.scram = &scramExchange{conversation: client.NewConversationAdvertisingChannelBinding()}
	default:
		l.session.Method = methodSCRAM
		l.scram = &scramExchange{conversation: client.NewConversation()}
	}
	first, err := l.scram.conversation.Step("")
	if err != nil {
		return fmt.Errorf("start SCRAM: %w", err)
	}
	return l.send(&pgproto3.SASLInitialResponse{AuthMechanism: mechanism, Data: []byte(first)})
}

// continueSCRAM answers the server's first and checks its final message.
func (l *login) continueSCRAM(code uint32, data []byte) error {
	if l.scram == nil {
		return protocolErrorf("SASL message without a SASL exchange")
	}
	l.scram.step++
	final := code == pgproto3.AuthTypeSASLFinal
	if len(data) > maxSCRAMMessage || final != (l.scram.step == 2) || l.scram.step > 2 {
		return protocolErrorf("SASL messages out of order or too long")
	}
	if !final {
		if err := checkIterations(string(data)); err != nil {
			return err
		}
	}
	reply, err := l.scram.conversation.Step(string(data))
	if err != nil {
		// The library's errors quote parts of the exchange; none is shown.
		return protocolErrorf("the server's SCRAM message %d is not valid, or it does not know the password", l.scram.step)
	}
	if final {
		return nil
	}
	return l.send(&pgproto3.SASLResponse{Data: []byte(reply)})
}

// scramClient prepares the password by SASLprep and, as libpq does, takes it
// as it is where that is not possible.
func scramClient(password string) (*scram.Client, error) {
	client, err := scram.SHA256.NewClient("", password, "")
	if err != nil {
		client, err = scram.SHA256.NewClientUnprepped("", password, "")
	}
	if err != nil {
		return nil, fmt.Errorf("prepare SCRAM: the password cannot be used")
	}
	return client.WithMinIterations(1), nil
}

// parseMechanisms reads a list of NUL-terminated names ended by an empty one.
func parseMechanisms(p []byte) (plain, plus bool, err error) {
	for {
		end := bytes.IndexByte(p, 0)
		if end < 0 {
			return false, false, protocolErrorf("malformed list of SASL mechanisms")
		}
		switch string(p[:end]) {
		case "":
			return plain, plus, nil
		case mechanismSCRAM:
			plain = true
		case mechanismPlus:
			plus = true
		}
		p = p[end+1:]
	}
}

// checkIterations reads the iteration count of a server-first-message before
// the library spends the CPU that it asks for.
func checkIterations(message string) error {
	for _, field := range strings.Split(message, ",") {
		if v, ok := strings.CutPrefix(field, "i="); ok {
			n, err := strconv.Atoi(v)
			if err != nil || n < 1 || n > maxIterations {
				return protocolErrorf("the server asks for an absurd number of SCRAM iterations (at most %d are accepted)", maxIterations)
			}
			return nil
		}
	}
	return protocolErrorf("the server's first SCRAM message has no iteration count")
}
