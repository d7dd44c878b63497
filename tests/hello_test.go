package tests

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"pghandoff/pgwire"
	"pghandoff/tests/testpg"
	"pghandoff/tlsstate"
	"pghandoff/tlsstate/utlshandshake"
)

// Proves that PostgreSQL, which takes P-256 only, asks for another key share neither when utls does the handshake nor when
// crypto/tls has learnt from the first dial, in both versions of TLS, and that a login over each works.
func TestHelloRetryRequestIsSpared(t *testing.T) {
	pg := testpg.Start(t, testpg.TLS)
	if major := serverMajor(t, pg.Host, pg.Port, tlsstate.Config{Host: pg.Host, Roots: pg.CA.Roots()}, pg.Role, pg.Database, pg.Password); major >= 18 {
		t.Skipf("PostgreSQL %d takes X25519 too", major)
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		cfg := tlsstate.Config{Host: pg.Host, Roots: pg.CA.Roots(), MaxVersion: version}
		for _, c := range []struct {
			name  string
			shake tlsstate.Handshaker
			group tls.CurveID
			retry bool
		}{
			{"std at first", tlsstate.Std{}, 0, version == tls.VersionTLS13},
			{"std afterwards", tlsstate.Std{}, tls.CurveP256, false},
			{"utls", utlshandshake.UTLS{}, 0, false},
		} {
			t.Run(fmt.Sprintf("%s/%s", tls.VersionName(version), c.name), func(t *testing.T) {
				cfg.Handshaker, cfg.Group = c.shake, c.group
				s := dialTLS(t, pg.Host, pg.Port, cfg)
				if i := s.Info(); i.HelloRetryRequest != c.retry || i.Version != version || version == tls.VersionTLS13 && i.Curve != tls.CurveP256 {
					t.Errorf("HelloRetryRequest %v, %s, group %v", i.HelloRetryRequest, i.VersionName(), i.Curve)
				}
				login(t, s, pg.Role, pg.Database, pg.Password)
			})
		}
	}
}

// Proves that the daemon's status tells what key exchanges cost: with crypto/tls
// only the first dials are asked for another key share, with utls none.
func TestStatusTellsHelloRetryRequests(t *testing.T) {
	pg := testpg.Shared(t)
	for _, c := range []struct {
		handshaker  string
		least, most uint64
	}{{"std", 1, 1}, {"utls", 0, 0}} {
		d := serve(t, pg, settings{TLS: "identity: app, handshaker: " + c.handshaker, Pool: "min_idle: 1, max: 1, reset: close"})
		for range 5 {
			c := d.connect()
			if query(t, c, "select (current_setting('server_version_num')::int >= 180000)::text") == "true" {
				t.Skip("PostgreSQL 18 and newer take the key share that crypto/tls sends at first")
			}
			c.Close(t.Context())
			d.awaitWarm()
		}
		s, err := d.client().Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r := s.Routes[0]; r.HelloRetries < c.least || r.HelloRetries > c.most || r.KeyExchange != tls.CurveP256.String() {
			t.Errorf("%s: %d HelloRetryRequests, key exchange %q", c.handshaker, r.HelloRetries, r.KeyExchange)
		}
	}
}

func dialTLS(t *testing.T, host string, port int, cfg tlsstate.Config) *tlsstate.Stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	nc, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	s, err := tlsstate.Client(ctx, nc, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// login logs in with channel binding and returns what the server reported.
func login(t *testing.T, s *tlsstate.Stream, user, database, password string) *pgwire.Session {
	t.Helper()
	session, err := pgwire.Login(s, pgwire.LoginConfig{User: user, Database: database, Password: password, Encrypted: true,
		EndpointBinding: s.Info().EndpointBinding, ChannelBinding: pgwire.BindingRequire})
	if err != nil {
		t.Fatal(err)
	}
	return session
}

func serverMajor(t *testing.T, host string, port int, cfg tlsstate.Config, user, database, password string) int {
	t.Helper()
	session := login(t, dialTLS(t, host, port, cfg), user, database, password)
	var major int
	for _, p := range session.Parameters {
		if p.Name == "server_version" {
			fmt.Sscan(p.Value, &major)
		}
	}
	return major
}
