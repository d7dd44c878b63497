package tests

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pghandoff/certs"
	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/pgwire"
	"pghandoff/proxy/audit"
	"pghandoff/tests/testpg"
)

// outside is a daemon with a TCP listener, and the authority of its clients.
type outside struct {
	*daemon
	ca      *certs.DevCA
	address string
	users   string // file of them
}

// listenTo starts a daemon with a listener that wants certificates, passwords, or
// both. The password of user "fn" is "säsame".
func listenTo(t *testing.T, pg *throwaway.Cluster, wantsCert, wantsPassword bool, s settings) *outside {
	t.Helper()
	o := &outside{daemon: newDaemon(t)}
	var err error
	if o.ca, err = certs.NewDevCA(time.Now()); err != nil {
		t.Fatal(err)
	}
	server, err := o.ca.IssueServer([]string{"localhost", "127.0.0.1"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	write(t, o.file("ca.crt"), string(o.ca.RootsPEM()))
	write(t, o.file("server.crt"), string(server.ChainPEM))
	write(t, o.file("server.key"), string(server.KeyPEM))
	o.issue("fn")
	o.users = o.file("users.txt")
	listen := "\nlisten: {address: \"127.0.0.1:0\", identity: listener"
	if wantsCert {
		listen += fmt.Sprintf(", client_roots: %q", o.file("ca.crt"))
	}
	if wantsPassword {
		o.admit(pg, "fn", "säsame")
		listen += fmt.Sprintf(", users: %q", o.users)
	}
	s.Global += listen + "}"
	s.Identities = fmt.Sprintf(", listener: {file: {cert: %q, key: %q}}", o.file("server.crt"), o.file("server.key"))
	o.configure(pg, s)
	o.start("serve", "--config", o.config)
	o.awaitWarm()
	o.address = regexp.MustCompile(`"address":"([^"]+)"`).FindStringSubmatch(o.stderr.String())[1]
	return o
}

func (o *outside) file(name string) string { return filepath.Join(o.dir, name) }

// issue makes a client certificate.
func (o *outside) issue(name string) {
	o.t.Helper()
	c, err := o.ca.IssueClient(name, time.Hour)
	if err != nil {
		o.t.Fatal(err)
	}
	write(o.t, o.file(name+".crt"), string(c.ChainPEM))
	write(o.t, o.file(name+".key"), string(c.KeyPEM))
	os.Chmod(o.file(name+".key"), 0o600)
}

// admit writes the file of users with the verifier that PostgreSQL makes of a
// password.
func (o *outside) admit(pg *throwaway.Cluster, user, password string) {
	o.t.Helper()
	role := "u" + strings.ToLower(rand.Text())
	verifier, err := pg.Psql(o.t.Context(), fmt.Sprintf("create role %s password '%s'; select rolpassword from pg_authid where rolname = '%s'", role, password, role))
	if err != nil {
		o.t.Fatal(err)
	}
	verifier = verifier[strings.Index(verifier, "SCRAM"):]
	write(o.t, o.users, fmt.Sprintf("; who may come in\n%q %q\n", user, strings.TrimSpace(verifier)))
	os.Chmod(o.users, 0o600)
}

// dsn is how a function connects that verifies the daemon; options come after.
func (o *outside) dsn(options ...string) string {
	host, port, _ := net.SplitHostPort(o.address)
	all := append([]string{"host=" + host, "port=" + port, "dbname=orders", "user=fn", "sslmode=verify-full", "sslrootcert=" + o.file("ca.crt")}, options...)
	return strings.Join(all, " ")
}

// cert is the options of a client certificate.
func (o *outside) cert(name string) string {
	return fmt.Sprintf("sslcert=%s sslkey=%s", o.file(name+".crt"), o.file(name+".key"))
}

func (o *outside) dial(options ...string) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(o.t.Context(), 20*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, o.dsn(options...))
	if err == nil {
		o.t.Cleanup(func() { c.Close(context.Background()) })
	}
	return c, err
}

// Proves that functions elsewhere get in by certificate: pgx and psql over TLS 1.2
// and 1.3, with 10 MB each way, cancel, and rules by the certificate's name; and
// that nobody else does.
func TestListenerByCertificate(t *testing.T) {
	pg := testpg.Shared(t)
	o := listenTo(t, pg, true, false, settings{Allow: "{cert_cn: fn}, {cert_dn: \"CN=by-dn\"}"})
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		config, err := pgx.ParseConfig(o.dsn(o.cert("fn")))
		if err != nil {
			t.Fatal(err)
		}
		config.TLSConfig.MinVersion, config.TLSConfig.MaxVersion = version, version
		c, err := pgx.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		carriesMegabytes(t, c)
		cancels(t, c)
		c.Close(t.Context())
	}
	o.issue("by-dn")
	if c, err := o.dial(o.cert("by-dn")); err != nil || query(t, c, "select 1") != "1" {
		t.Errorf("by its distinguished name: %v", err)
	}
	o.issue("stranger")
	if _, err := o.dial(o.cert("stranger")); sqlState(err) != "28000" || !strings.Contains(err.Error(), "CN=stranger at 127.0.0.1 may not use route") {
		t.Errorf("a stranger with a certificate: %v", err)
	}
	if c, err := o.dial(); err == nil {
		t.Errorf("without a certificate: %v", query(t, c, "select 1"))
	}
	if _, err := o.dial("sslmode=disable"); sqlState(err) != "28000" || !strings.Contains(err.Error(), "TLS only") {
		t.Errorf("in plaintext: %v", err)
	}
	e := o.awaitEvent("the lease", func(e audit.Event) bool { return e.Event == audit.LeaseGranted && e.Way == "tcp" })
	if p := e.Peer; p.UID != 65534 || p.CertSubject != "CN=fn" || p.CertSerial == "" || !strings.HasPrefix(p.Address, "127.0.0.1:") {
		t.Errorf("the audit says %+v", p)
	}
	o.awaitEvent("the plaintext", func(e audit.Event) bool { return e.Event == audit.LeaseDenied && e.Outcome == "no_tls" })
	o.awaitEvent("no certificate", func(e audit.Event) bool { return e.Event == audit.LeaseDenied && e.Outcome == "tls" })
}

// carriesMegabytes moves 10 MB in either direction, as one value.
func carriesMegabytes(t *testing.T, c *pgx.Conn) {
	t.Helper()
	data := make([]byte, 10<<20)
	rand.Read(data)
	var back []byte
	if err := c.QueryRow(t.Context(), "select $1::bytea", data).Scan(&back); err != nil || !slices.Equal(back, data) {
		t.Errorf("%d bytes of %d came back, %v", len(back), len(data), err)
	}
}

// cancels cancels a statement by the driver's own request.
func cancels(t *testing.T, c *pgx.Conn) {
	t.Helper()
	done := make(chan error, 1)
	go func() { // ended by the cancel
		_, err := c.Exec(context.Background(), "select pg_sleep(60)")
		done <- err
	}()
	for {
		if err := c.PgConn().CancelRequest(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			if sqlState(err) != "57014" {
				t.Errorf("cancelled: %v", err)
			}
			return
		case <-time.After(50 * time.Millisecond): // it had not begun
		}
	}
}

// Proves that a password is asked for and checked, with channel binding as libpq
// wants it, that an unknown user is not told from a wrong password, and that both
// factors are demanded where both are configured.
func TestListenerByPassword(t *testing.T) {
	psql := testpg.Require(t, "psql", "postgresql-client")
	pg := testpg.Shared(t)
	o := listenTo(t, pg, false, true, settings{Route: "    users: [fn]"})
	env := append(os.Environ(), "PGPASSWORD=säsame", "PGCONNECT_TIMEOUT=10")
	for _, binding := range []string{"disable", "prefer", "require"} {
		out, err := shell(t, env, psql, "-XAtc", `select 6*7`, o.dsn("channel_binding="+binding))
		if err != nil || strings.TrimSpace(out) != "42" {
			t.Errorf("channel_binding=%s: %v: %s", binding, err, out)
		}
	}
	var told []string
	for _, who := range []string{"user=fn password=sesame", "user=nobody password=säsame"} {
		_, err := o.dial(who)
		var refused *pgconn.PgError
		if !errors.As(err, &refused) {
			t.Fatalf("%s: %v", who, err)
		}
		told = append(told, refused.Code+strings.ReplaceAll(refused.Message, "nobody", "fn"))
	}
	if told[0] != told[1] || !strings.HasPrefix(told[0], "28P01password authentication failed") {
		t.Errorf("told %q", told)
	}
	e := o.awaitEvent("the lease", func(e audit.Event) bool { return e.Event == audit.LeaseGranted })
	if e.Peer.LoginUser != "fn" {
		t.Errorf("the audit says %+v", e.Peer)
	}
	o.admit(pg, "fn", "changed")
	o.cmd.Process.Signal(syscall.SIGHUP)
	eventually(t, "the new password", func() bool {
		c, err := o.dial("password=changed")
		return err == nil && query(t, c, "select 1") == "1"
	})
	if _, err := o.dial("password=säsame"); sqlState(err) != "28P01" {
		t.Errorf("the old password: %v", err)
	}
}

func TestListenerThatWantsBoth(t *testing.T) {
	o := listenTo(t, testpg.Shared(t), true, true, settings{})
	if c, err := o.dial(o.cert("fn"), "password=säsame"); err != nil || query(t, c, "select 1") != "1" {
		t.Errorf("with both: %v", err)
	}
	for name, options := range map[string]string{"certificate alone": o.cert("fn") + " password=x", "password alone": "password=säsame"} {
		if _, err := o.dial(options); err == nil {
			t.Errorf("%s is enough", name)
		}
	}
}

// Proves that direct TLS works with ALPN and only with it, that TLS which is not
// answered, half start-ups and noise are given up, and that all of it leaves the
// daemon as it was.
func TestListenerAndConnectionsThatAreNotAsTheyShouldBe(t *testing.T) {
	o := listenTo(t, testpg.Shared(t), true, false, settings{Pool: "min_idle: 1, max: 1"})
	before := o.footprint().descriptors
	config := &tls.Config{RootCAs: o.ca.Roots(), ServerName: "localhost", Certificates: []tls.Certificate{o.pair("fn")}, NextProtos: []string{"postgresql"}}
	direct, err := tls.Dial("tcp", o.address, config)
	if err != nil {
		t.Fatal(err)
	}
	r := rawOn(t, direct)
	r.send(append(startupMessage(pgwire.Version30, "user", "fn", "database", "orders"), message('Q', "select 'direct'\x00")...))
	for !strings.Contains(string(r.until('D')), "direct") {
	}
	if err := direct.Close(); err != nil {
		t.Error(err)
	}
	without := config.Clone()
	without.NextProtos = nil
	if c, err := tls.Dial("tcp", o.address, without); err == nil {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("direct TLS without ALPN is served")
		}
		c.Close()
	}
	const wantsTLS = "\x00\x00\x00\x08\x04\xd2\x16\x2f"
	for name, p := range map[string]string{
		"HTTP": "GET / HTTP/1.1\r\n\r\n", "nothing": "", "SSLRequest, then plaintext": wantsTLS + string(startupMessage(pgwire.Version30, "user", "fn")),
		"SSLRequest, then nothing": wantsTLS, "half a hello": "\x16\x03\x01\x02\x00\x01", "noise": rand.Text() + rand.Text(),
		"SSLRequest twice": wantsTLS + wantsTLS, "cancel of nothing": "\x00\x00\x00\x10\x04\xd2\x16\x2e\x00\x00\x00\x01\x00\x00\x00\x01",
	} {
		c, err := net.Dial("tcp", o.address)
		if err != nil {
			t.Fatal(err)
		}
		c.Write([]byte(p))
		c.(*net.TCPConn).CloseWrite()
		c.SetReadDeadline(time.Now().Add(15 * time.Second))
		if out, err := io.ReadAll(c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %v after %s", name, err, hex.EncodeToString(out))
		}
		c.Close()
	}
	o.awaitWarm()
	eventually(t, "as many descriptors as before", func() bool { return o.footprint().descriptors <= before })
}

// pair is a client certificate for crypto/tls.
func (o *outside) pair(name string) tls.Certificate {
	o.t.Helper()
	c, err := tls.LoadX509KeyPair(o.file(name+".crt"), o.file(name+".key"))
	if err != nil {
		o.t.Fatal(err)
	}
	return c
}

// Proves that a certificate of a client is no listener's, that one of nobody's
// authority is refused by its function, and that the settings are checked.
func TestListenerThatCannotBe(t *testing.T) {
	o := listenTo(t, testpg.Shared(t), true, false, settings{})
	if _, err := o.dial(o.cert("fn"), "sslrootcert="+testpg.Shared(t).RootsFile); !errors.As(err, new(x509.UnknownAuthorityError)) {
		t.Errorf("another authority: %v", err)
	}
	text, _ := os.ReadFile(o.config)
	for old, c := range map[string]struct{ now, sentence string }{
		o.file("server.crt"): {o.file("fn.crt"), "private key"},
		"listen: {":          {"listen: {min_version: \"1.1\", ", "listen.min_version"},
		"identity: listener": {"identity: nobody", "listen.identity"},
		"127.0.0.1:0":        {"127.0.0.1", "listen.address"},
		", client_roots":     {", users", "users"},
		"allow: [any: true]": {"allow: [{cert_cn: x, cert: y}]", "cert"},
		", client_roots: \"" + o.file("ca.crt") + "\"": {"", "everybody would be let in"},
	} {
		bad := filepath.Join(t.TempDir(), "bad.yaml")
		write(t, bad, strings.Replace(string(text), old, c.now, 1))
		if out, err := shell(t, os.Environ(), program(t), "check", "--config", bad); err == nil || !strings.Contains(out, c.sentence) {
			t.Errorf("%s for %s: %v: %s", c.now, old, err, out)
		}
	}
}
