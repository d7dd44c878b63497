package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/certs"
	"pghandoff/pgwire"
	"pghandoff/proxy/audit"
	"pghandoff/proxy/config"
	"pghandoff/tlsstate"
	"pghandoff/tlsstate/utlshandshake"
)

// keepAlive finds a peer that is gone without a word within a minute.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3}

// tcpUserTimeout is how long sent data may stay unacknowledged before the
// kernel gives a dead server up.
const tcpUserTimeout = 30 * time.Second

// dialler makes upstreams of one route. It is immutable but for the cache of
// its password source and what was last said by a server, and safe for concurrent
// use.
type dialler struct {
	route    string
	cfg      config.Route
	servers  []config.Server
	mode     tlsstate.Mode
	direct   tlsstate.Negotiation
	binding  pgwire.BindingMode
	hello    tlsstate.Handshaker // nil: crypto/tls
	groups   groups
	hellos   hellos
	oldest   uint16 // version of TLS that is accepted
	trust    trust
	identity *certs.Identity // nil: none
	password *passwordSource
	last     shared
}

func newDialler(ctx context.Context, name string, cfg config.Route, identities map[string]*certs.Identity) (*dialler, error) {
	d := &dialler{route: name, cfg: cfg, password: &passwordSource{from: cfg.Password, database: firstOf(cfg.Database, name), user: cfg.User}, identity: identities[cfg.TLS.Identity]}
	for _, s := range cfg.Servers {
		server, err := config.ParseServer(s)
		if err != nil {
			return nil, err
		}
		d.servers = append(d.servers, server)
	}
	var err error
	if d.mode, err = tlsstate.ParseMode(cfg.TLS.Mode); err != nil {
		return nil, err
	}
	if d.direct, err = tlsstate.ParseNegotiation(cfg.TLS.Negotiation); err != nil {
		return nil, err
	}
	if cfg.TLS.Handshaker == "utls" {
		d.hello = utlshandshake.UTLS{}
	}
	d.oldest = map[string]uint16{"1.3": tls.VersionTLS13}[cfg.TLS.MinVersion]
	d.binding = map[string]pgwire.BindingMode{"require": pgwire.BindingRequire, "disable": pgwire.BindingDisable}[cfg.TLS.ChannelBinding]
	if d.trust, err = newTrust(ctx, name, cfg.TLS); err != nil {
		return nil, err
	}
	return d, d.checkTLS()
}

// dial makes one upstream, trying the servers in order. Errors are joined
// *dialError.
func (d *dialler) dial(ctx context.Context) (*Upstream, error) { return d.dialWith(ctx, nil) }

// dialWith makes one whose session starts with further parameters.
func (d *dialler) dialWith(ctx context.Context, startup []pgwire.Parameter) (*Upstream, error) {
	return d.try(ctx, attempt{startup: startup})
}

// dialAs makes one with an identity's set that is not published yet.
func (d *dialler) dialAs(ctx context.Context, s *certs.Snapshot) (*Upstream, error) {
	return d.try(ctx, attempt{identity: s})
}

func (d *dialler) try(ctx context.Context, a attempt) (*Upstream, error) {
	password, err := d.password.fetch(ctx)
	if err != nil {
		return nil, err
	}
	passes := []string{d.cfg.TargetSessionAttrs}
	if passes[0] == "prefer-standby" {
		passes = []string{"standby", "any"}
	}
	var failures []error
	for _, want := range passes {
		for _, server := range d.servers {
			a.password = password.of(server)
			u, err := d.dialServer(ctx, server, a)
			if err == nil {
				if err = satisfies(u, want); err == nil {
					u.standby = u.onStandby()
					return u, nil
				}
				u.close()
			}
			if refusesPassword(err) {
				d.password.forget()
			}
			failures = append(failures, &dialError{server: server.String(), err: err})
		}
	}
	if len(failures) == 1 {
		return nil, failures[0]
	}
	return nil, errors.Join(failures...)
}

// refusesPassword reports whether the server did not let us in as who we say we
// are (SQLSTATE class 28): a token that is still kept may have been revoked.
func refusesPassword(err error) bool {
	var refused *pgwire.ServerError
	return errors.As(err, &refused) && strings.HasPrefix(refused.Code, "28")
}

// standing reports whether the server of an upstream is still what is wanted, by
// what it has reported since.
func (d *dialler) standing(u *Upstream) bool {
	if d.cfg.TargetSessionAttrs == "prefer-standby" {
		return u.standby == u.onStandby()
	}
	return satisfies(u, d.cfg.TargetSessionAttrs) == nil
}

// satisfies checks target_session_attrs by what the server reported at login
// (PostgreSQL 14 and newer).
func satisfies(u *Upstream, want string) error {
	if want == "any" {
		return nil
	}
	standby, ok := u.parameters.get("in_hot_standby")
	readOnly, ok2 := u.parameters.get("default_transaction_read_only")
	if !ok || !ok2 {
		return errors.New("the server does not report in_hot_standby: target_session_attrs needs PostgreSQL 14 or newer")
	}
	isStandby := standby == "on"
	var fits bool
	switch want {
	case "read-write":
		fits = !isStandby && readOnly == "off"
	case "read-only":
		fits = isStandby || readOnly == "on"
	case "primary":
		fits = !isStandby
	case "standby":
		fits = isStandby
	}
	if !fits {
		return fmt.Errorf("the server is not %s", want)
	}
	return nil
}

// attempt is what one login needs beside the route's own settings.
type attempt struct {
	password config.Secret
	startup  []pgwire.Parameter // further parameters of the session
	identity *certs.Snapshot    // nil: the current one
}

// dialServer tries one server in the ways its TLS mode allows. A fallback to
// plaintext, or from it, happens in the modes allow and prefer only.
func (d *dialler) dialServer(ctx context.Context, server config.Server, a attempt) (*Upstream, error) {
	mode := d.mode
	if server.Unix {
		mode = tlsstate.Disable // as libpq: there is no TLS on a Unix socket
	}
	switch mode {
	case tlsstate.Disable:
		return d.connect(ctx, server, a, false)
	case tlsstate.Allow:
		u, err := d.connect(ctx, server, a, false)
		var refused *pgwire.ServerError
		if errors.As(err, &refused) {
			return d.connect(ctx, server, a, true)
		}
		return u, err
	case tlsstate.Prefer:
		u, err := d.connect(ctx, server, a, true)
		if err != nil && !isUnreachable(err) {
			return d.connect(ctx, server, a, false)
		}
		return u, err
	}
	return d.connect(ctx, server, a, true)
}

func isUnreachable(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// connect opens one connection and logs in.
func (d *dialler) connect(ctx context.Context, server config.Server, a attempt, encrypt bool) (*Upstream, error) {
	conn, err := d.open(ctx, server)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.Timeouts.Login.Std())
	defer cancel()
	u := &Upstream{server: server, identity: a.identity, opened: time.Now()}
	if encrypt {
		stream, err := d.encrypt(ctx, u, conn)
		if err != nil {
			conn.Close()
			return nil, err
		}
		conn = stream
	}
	if err := d.login(ctx, u, conn, a); err != nil {
		conn.Close()
		return nil, err
	}
	if u.end, err = newEnd(conn); err != nil {
		return nil, err
	}
	d.last.share(u)
	u.retire = retireTime(u.opened, d.cfg.Pool.MaxLifetime.Std())
	return u, nil
}

// shared is what was said of the upstream that was made last. The next one is
// most likely the same, and then refers to it: thousands of sets of parameters
// would be most of the memory that idle upstreams take.
type shared struct {
	mu         sync.Mutex
	parameters *parameterSet
	described  *audit.Upstream
}

// share lets u refer to what is known already.
func (s *shared) share(u *Upstream) {
	described := u.describe()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.parameters == nil || !slices.Equal(s.parameters.list, u.parameters.list) {
		s.parameters = u.parameters
	}
	if s.described == nil || !reflect.DeepEqual(s.described, described) {
		s.described = described
	}
	u.parameters, u.described = s.parameters, s.described
}

// retireTime spreads the ends of upstreams that were opened together over the
// last tenth of their lifetime.
func retireTime(opened time.Time, lifetime time.Duration) time.Time {
	if lifetime <= 0 {
		return time.Time{}
	}
	return opened.Add(lifetime - time.Duration(rand.Float64()*0.1*float64(lifetime)))
}

func (d *dialler) open(ctx context.Context, server config.Server) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.Timeouts.Connect.Std())
	defer cancel()
	network := "tcp"
	if server.Unix {
		network = "unix"
	}
	dialer := net.Dialer{KeepAliveConfig: keepAlive}
	nc, err := dialer.DialContext(ctx, network, server.String())
	if err != nil {
		return nil, err
	}
	if t, ok := nc.(*net.TCPConn); ok {
		if err := setUserTimeout(t, tcpUserTimeout); err != nil {
			nc.Close()
			return nil, err
		}
	}
	return nc, nil
}

func setUserTimeout(c *net.TCPConn, d time.Duration) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) {
		inner = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	}); err != nil {
		return err
	}
	return inner
}

func (d *dialler) login(ctx context.Context, u *Upstream, conn net.Conn, a attempt) error {
	cfg := pgwire.LoginConfig{User: d.cfg.User, Database: d.database(), Password: a.password.Reveal(), ChannelBinding: d.binding, Parameters: a.startup}
	if stream, ok := conn.(*tlsstate.Stream); ok {
		cfg.Encrypted, cfg.EndpointBinding = true, stream.Info().EndpointBinding
	}
	deadline, _ := ctx.Deadline()
	conn.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	s, err := pgwire.Login(conn, cfg)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	conn.SetDeadline(time.Time{})
	u.parameters, u.pid, u.secret, u.method = newParameterSet(s.Parameters), s.PID, s.Secret, s.Method
	if u.parameters.excessive() {
		return errParameters
	}
	return nil
}

func (d *dialler) database() string {
	if d.cfg.Database != "" {
		return d.cfg.Database
	}
	return d.route
}

// cancel sends a cancel request for the backend of u to the server it lives
// on, over TLS with the same checks, and waits until the server has closed the
// connection: then the signal, if any, has been sent.
func (d *dialler) cancel(ctx context.Context, server config.Server, encrypted bool, pid uint32, secret []byte) error {
	nc, err := d.open(ctx, server)
	if err != nil {
		return err
	}
	defer func() { nc.Close() }()
	if encrypted {
		stream, err := d.encrypt(ctx, &Upstream{server: server}, nc)
		if err != nil {
			return err
		}
		nc = stream
	}
	if deadline, ok := ctx.Deadline(); ok {
		nc.SetDeadline(deadline)
	}
	if _, err := nc.Write(pgwire.AppendCancelRequest(nil, pid, secret)); err != nil {
		return fmt.Errorf("%w: %w", errCancelUnknown, err)
	}
	var b [1]byte
	_, err = nc.Read(b[:]) // the server says nothing and closes
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		return nil
	}
	return fmt.Errorf("%w: %w", errCancelUnknown, err)
}

// errCancelUnknown: the request may have reached the server, which has not said
// that it is through with it by closing the connection.
var errCancelUnknown = errors.New("the outcome of the cancel request is not known")
