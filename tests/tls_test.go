package tests

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/proxy/audit"
	"pghandoff/tests/testpg"
)

// suites are what OpenSSL, and so PostgreSQL, is forced to.
const suites = `openssl_conf = top
[top]
ssl_conf = ssl
[ssl]
system_default = tls
[tls]
%s
`

// tlsSuite is a suite by the names of OpenSSL and IANA.
type tlsSuite struct{ version, openssl, iana string }

var ciphers = []tlsSuite{
	{"TLSv1.3", "TLS_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"},
	{"TLSv1.3", "TLS_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384"},
	{"TLSv1.3", "TLS_CHACHA20_POLY1305_SHA256", "TLS_CHACHA20_POLY1305_SHA256"},
	{"TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"},
	{"TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"},
	{"TLSv1.2", "ECDHE-ECDSA-CHACHA20-POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"},
}

// startWith starts a server that speaks this suite only.
func startWith(t *testing.T, c tlsSuite) *throwaway.Cluster {
	t.Helper()
	dir := t.TempDir()
	for p := dir; p != "/tmp" && p != "/"; p = filepath.Dir(p) {
		os.Chmod(p, 0o755) // the server's user reads it
	}
	line, settings := "Ciphersuites = "+c.openssl, map[string]string{}
	if c.version == "TLSv1.2" {
		line, settings = "", map[string]string{"ssl_max_protocol_version": "TLSv1.2", "ssl_ciphers": c.openssl}
	}
	conf := filepath.Join(dir, "openssl.cnf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, suites, line), 0o644); err != nil {
		t.Fatal(err)
	}
	return testpg.Start(t, testpg.With(func(c *throwaway.Config) { c.Env, c.Settings = []string{"OPENSSL_CONF=" + conf}, settings }))
}

// Proves that a server which has nothing newer than TLS 1.2 is refused if that
// is asked for, and that the answer names the setting.
func TestOldestVersionOfTLS(t *testing.T) {
	pg := startWith(t, ciphers[3])
	d := newDaemon(t)
	d.configure(pg, settings{TLS: "identity: app, min_version: \"1.3\""})
	out, err := shell(t, nil, program(t), "check", "--connect", "--config", d.config)
	if err == nil || !strings.Contains(out, "tls.min_version") {
		t.Errorf("got %v, %s", err, out)
	}
}

// Proves that the record layer carries 10 MB unchanged from a real PostgreSQL
// in each suite, and that login, channel binding and cancel work in it.
func TestTenMegabytesInEverySuite(t *testing.T) {
	for _, suite := range ciphers {
		t.Run(suite.iana, func(t *testing.T) {
			d := serve(t, startWith(t, suite), settings{TLS: "identity: app, channel_binding: require"})
			c := d.connect()
			if got := query(t, c, "select version || ' ' || cipher from pg_stat_ssl where pid = pg_backend_pid()"); got != suite.version+" "+suite.openssl {
				t.Fatalf("the connection is %s", got)
			}
			const rows = "from generate_series(1, 10240) i"
			const row = "rpad(md5(i::text), 1024, md5((i * 7)::text))"
			want := query(t, c, "select encode(sha256(convert_to(string_agg("+row+", '' order by i), 'UTF8')), 'hex') "+rows)
			sum := sha256.New()
			result, err := c.Query(t.Context(), "select "+row+" "+rows+" order by i")
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for result.Next() {
				for _, v := range result.RawValues() {
					m, _ := sum.Write(v)
					n += m
				}
			}
			if err := result.Err(); err != nil {
				t.Fatal(err)
			}
			if got := hex.EncodeToString(sum.Sum(nil)); got != want || n != 10<<20 {
				t.Errorf("%d bytes with digest %s, the server says %s", n, got, want)
			}
			// And the same amount the other way.
			if got := query(t, c, "select encode(sha256(convert_to($1, 'UTF8')), 'hex')", ten); got != tenDigest() {
				t.Errorf("10 MB to the server arrive with digest %s", got)
			}
			e := d.awaitEvent("lease.granted", func(e audit.Event) bool { return e.Event == audit.LeaseGranted })
			if e.Upstream.Cipher != suite.iana || e.Upstream.TLSVersion != strings.Replace(suite.version, "TLSv", "TLS ", 1) || !e.Upstream.ChannelBinding || e.Upstream.ServerCertSHA256 == "" {
				t.Errorf("the audit says %+v", e.Upstream)
			}
		})
	}
}

// Proves that a route works with either library for the handshake: client
// certificate, SCRAM with channel binding, cancel, and a second dial.
func TestHandshakers(t *testing.T) {
	pg := testpg.Start(t, testpg.MTLS)
	for _, handshaker := range []string{"std", "utls"} {
		t.Run(handshaker, func(t *testing.T) {
			d := serve(t, pg, settings{TLS: "identity: app, channel_binding: require, handshaker: " + handshaker, Pool: "min_idle: 2"})
			c := d.connect()
			if got := query(t, c, "select version || ' ' || client_dn from pg_stat_ssl where pid = pg_backend_pid()"); got != "TLSv1.3 /CN=app" {
				t.Errorf("the connection is %s", got)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if _, err := d.connect().Exec(ctx, "select pg_sleep(60)"); err == nil {
				t.Error("a query is not cancelled")
			}
			d.awaitEvent("cancel.forwarded", func(e audit.Event) bool { return e.Event == audit.CancelForwarded })
		})
	}
}

// ten is 10 MB of text.
var ten = func() string {
	b := make([]byte, 0, 10<<20)
	for i := 0; len(b) < 10<<20; i++ {
		b = fmt.Appendf(b, "%08x", i*2654435761&0xffffffff)
	}
	return string(b)
}()

func tenDigest() string {
	sum := sha256.Sum256([]byte(ten))
	return hex.EncodeToString(sum[:])
}

// Proves libpq's modes against a server that has TLS and one that has none: what
// is strict fails without it, and only what is spelt out as weak goes on in
// plaintext.
func TestModesWithAndWithoutTLS(t *testing.T) {
	with, without := testpg.Start(t, testpg.TLS), testpg.Start(t, testpg.Plain)
	for _, c := range []struct {
		mode               string
		withTLS, encrypted bool // against the server that has TLS: works, and is encrypted
		plain              bool // against the one that has none: works
	}{
		{"verify-full", true, true, false},
		{"verify-ca", true, true, false},
		{"require", true, true, false},
		{"prefer", true, true, true},
		{"allow", true, true, true}, // its pg_hba.conf wants TLS, so that the second try is encrypted
		{"disable", false, false, true},
	} {
		t.Run(c.mode, func(t *testing.T) {
			for _, pg := range []*throwaway.Cluster{with, without} {
				d := newDaemon(t)
				roots := pg.RootsFile
				if roots == "" {
					roots = with.RootsFile
				}
				d.configure(pg, settings{Roots: roots, TLS: "identity: app, mode: " + c.mode})
				out, err := shell(t, nil, program(t), "check", "--connect", "--config", d.config)
				works := c.plain
				if pg == with {
					works = c.withTLS
				}
				if (err == nil) != works {
					t.Errorf("server with TLS %v: %v, %s", pg == with, err, out)
				}
			}
		})
	}
}

// Proves the other ways to log in: MD5, clear text within TLS, a certificate
// alone, and trust.
func TestLoginMethods(t *testing.T) {
	for _, c := range []struct {
		name    string
		options []testpg.Option
		works   bool
	}{
		{"md5 over TLS", []testpg.Option{testpg.TLS, testpg.Auth("md5")}, true},
		{"clear text over TLS", []testpg.Option{testpg.TLS, testpg.Auth("password")}, true},
		{"clear text without TLS", []testpg.Option{testpg.Plain, testpg.Auth("password")}, false},
		{"certificate alone", []testpg.Option{testpg.MTLS, testpg.Auth("cert")}, true},
		{"trust", []testpg.Option{testpg.TLS, testpg.Auth("trust")}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			pg := testpg.Start(t, c.options...)
			t.Setenv("PGHANDOFF_URL", pg.URL())
			out, err := shell(t, nil, program(t), "check", "--connect")
			if (err == nil) != c.works {
				t.Errorf("%v, %s", err, out)
			}
		})
	}
}
