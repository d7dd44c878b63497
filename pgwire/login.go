package pgwire

import (
	"crypto/md5" //nolint:gosec // the MD5 method is PostgreSQL's, not our choice
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgproto3/v2"
)

// BindingMode is libpq's channel_binding; the zero value is prefer.
type BindingMode int

// The values of channel_binding.
const (
	BindingPrefer BindingMode = iota
	BindingRequire
	BindingDisable
)

// String returns libpq's name of the mode.
func (m BindingMode) String() string {
	switch m {
	case BindingRequire:
		return "require"
	case BindingDisable:
		return "disable"
	}
	return "prefer"
}

// Errors of a login that are not the server's words.
var (
	// ErrNoPassword: the server asks for a password and there is none.
	ErrNoPassword = errors.New("the server asks for a password and none is configured: set the route's password, or let the server accept the client certificate alone")
	// ErrClearText: the server asks for the password in clear text over a
	// connection that is not encrypted.
	ErrClearText = errors.New("the server asks for the password in clear text over an unencrypted connection: refused; use TLS or SCRAM-SHA-256")
	// ErrBindingRequired: channel_binding is require and the server did not
	// offer or finish SCRAM-SHA-256-PLUS.
	ErrBindingRequired = errors.New("channel binding is required, but the server did not authenticate with SCRAM-SHA-256-PLUS")
)

// LoginConfig says as whom to log in and how.
type LoginConfig struct {
	User     string
	Database string
	// Password may be empty: then methods that need one fail with
	// [ErrNoPassword].
	Password string
	// Encrypted says that the connection is TLS, so that a clear-text password
	// may be sent and channel binding is possible.
	Encrypted bool
	// ChannelBinding is what to demand; EndpointBinding the hash of the
	// server's certificate (tls-server-end-point, RFC 5929), nil where that is
	// undefined.
	ChannelBinding  BindingMode
	EndpointBinding []byte
	// Parameters are further start-up parameters, such as application_name.
	Parameters []Parameter
}

// Session is what the server told at login.
type Session struct {
	// Parameters holds each ParameterStatus in the order of arrival.
	Parameters []Parameter
	// PID and Secret identify the backend for a cancel request; Secret is
	// empty if the server sent no BackendKeyData.
	PID    uint32
	Secret []byte
	// Status is the transaction status of the first ReadyForQuery.
	Status byte
	// Method is how the server authenticated us: "trust" (also for a client
	// certificate), "password", "md5", "scram-sha-256", "scram-sha-256-plus".
	Method string
}

// maxParameters bounds what a server may report at login.
const maxParameters = 1000

// Login sends the start-up message over rw, authenticates and reads up to the
// first ReadyForQuery; it reads nothing behind it. The caller bounds the time
// by deadlines on rw. Errors of the server are *[ServerError], further ones
// wrap [ErrProtocol], [ErrNoPassword], [ErrClearText] or [ErrBindingRequired].
func Login(rw io.ReadWriter, cfg LoginConfig) (*Session, error) {
	l := login{cfg: cfg, rw: rw, frames: NewFrameReader(rw, maxLoginLength), session: &Session{Method: "trust"}}
	if err := l.sendStartup(); err != nil {
		return nil, err
	}
	if err := l.authenticate(); err != nil {
		return nil, err
	}
	if cfg.ChannelBinding == BindingRequire && l.session.Method != methodPlus {
		return nil, ErrBindingRequired
	}
	if err := l.awaitReady(); err != nil {
		return nil, err
	}
	return l.session, nil
}

type login struct {
	cfg     LoginConfig
	rw      io.ReadWriter
	frames  *FrameReader
	session *Session
	scram   *scramExchange
}

func (l *login) sendStartup() error {
	m := pgproto3.StartupMessage{ProtocolVersion: Version30, Parameters: map[string]string{"user": l.cfg.User, "database": l.cfg.Database}}
	for _, p := range l.cfg.Parameters {
		m.Parameters[p.Name] = p.Value
	}
	return l.send(&m)
}

func (l *login) send(m encoder) error {
	p, err := m.Encode(nil)
	if err != nil {
		return fmt.Errorf("encode %T: %w", m, err)
	}
	if _, err := l.rw.Write(p); err != nil {
		return l.unsent(fmt.Errorf("send %T: %w", m, err))
	}
	return nil
}

// unsent looks for what the server said before it closed the connection on us:
// with TLS 1.3 a client certificate is refused only after the handshake, and a
// server that is full says so without waiting for our message.
func (l *login) unsent(err error) error {
	if _, _, said := l.next(); said != nil {
		return errors.Join(said, err)
	}
	return err
}

// next returns the next frame that is not a notice, and turns an error of the
// server into an error. Notices during login are dropped: they may come from a
// server that has proved nothing yet.
func (l *login) next() (typ byte, body []byte, err error) {
	for {
		typ, body, err = l.frames.Next()
		switch {
		case err == io.EOF:
			return 0, nil, errors.New("the server closed the connection during login")
		case errors.Is(err, io.ErrUnexpectedEOF):
			return 0, nil, fmt.Errorf("the server closed the connection amid a message: %w", err)
		case err != nil:
			return 0, nil, fmt.Errorf("read login answer: %w", err)
		case typ == 'E':
			e, err := ParseError(body)
			if err != nil {
				return 0, nil, err
			}
			return 0, nil, e
		case typ == 'N':
			continue
		case typ == 'v':
			return 0, nil, protocolErrorf("the server wants to negotiate protocol 3.0, which has nothing to negotiate")
		}
		return typ, body, nil
	}
}

// authenticate answers the server's requests until AuthenticationOk.
func (l *login) authenticate() error {
	for {
		typ, body, err := l.next()
		if err != nil {
			return err
		}
		if typ != 'R' || len(body) < 4 {
			return protocolErrorf("unexpected message %q during authentication", typ)
		}
		code := binary.BigEndian.Uint32(body)
		if code == pgproto3.AuthTypeOk {
			if l.scram != nil && !l.scram.verified() {
				return protocolErrorf("the server ended SCRAM without proving that it knows the password")
			}
			return nil
		}
		if err := l.answer(code, body); err != nil {
			return err
		}
	}
}

func (l *login) answer(code uint32, body []byte) error {
	switch code {
	case pgproto3.AuthTypeCleartextPassword:
		if !l.cfg.Encrypted {
			return ErrClearText
		}
		return l.sendPassword("password", l.cfg.Password)
	case pgproto3.AuthTypeMD5Password:
		var m pgproto3.AuthenticationMD5Password
		if err := m.Decode(body); err != nil {
			return protocolErrorf("malformed MD5 request")
		}
		return l.sendPassword("md5", md5Response(l.cfg.User, l.cfg.Password, m.Salt))
	case pgproto3.AuthTypeSASL:
		return l.startSCRAM(body[4:])
	case pgproto3.AuthTypeSASLContinue, pgproto3.AuthTypeSASLFinal:
		return l.continueSCRAM(code, body[4:])
	}
	return fmt.Errorf("the server asks for authentication method %d, which is not supported: use a certificate, SCRAM-SHA-256, md5 or password", code)
}

func (l *login) sendPassword(method, response string) error {
	if l.cfg.Password == "" {
		return ErrNoPassword
	}
	if l.cfg.ChannelBinding == BindingRequire {
		return ErrBindingRequired
	}
	if l.session.Method != "trust" {
		return protocolErrorf("the server asks for a second authentication")
	}
	l.session.Method = method
	return l.send(&pgproto3.PasswordMessage{Password: response})
}

// md5Response is "md5" + md5(md5(password + user) + salt), in hex
// (PostgreSQL, "Start-up", AuthenticationMD5Password).
func md5Response(user, password string, salt [4]byte) string {
	inner := md5.Sum([]byte(password + user))
	outer := md5.Sum(append([]byte(hex.EncodeToString(inner[:])), salt[:]...))
	return "md5" + hex.EncodeToString(outer[:])
}

// awaitReady collects what the server reports until ReadyForQuery.
func (l *login) awaitReady() error {
	for {
		typ, body, err := l.next()
		if err != nil {
			return err
		}
		switch typ {
		case 'S':
			p, err := ParseParameterStatus(body)
			if err != nil {
				return err
			}
			if len(l.session.Parameters) == maxParameters {
				return protocolErrorf("the server reports more than %d parameters", maxParameters)
			}
			l.session.Parameters = append(l.session.Parameters, p)
		case 'K':
			if len(body) < 8 || len(body) > 4+maxCancelKeyLength {
				return protocolErrorf("BackendKeyData of %d bytes", len(body))
			}
			l.session.PID = binary.BigEndian.Uint32(body)
			l.session.Secret = append([]byte(nil), body[4:]...)
		case 'Z':
			if len(body) != 1 || body[0] != 'I' {
				return protocolErrorf("the first ReadyForQuery does not say idle")
			}
			l.session.Status = 'I'
			return nil
		default:
			return protocolErrorf("unexpected message %q after authentication", typ)
		}
	}
}
