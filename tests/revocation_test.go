package tests

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/proxy/admin"
	"pghandoff/tests/testpg"
)

// Proves that a route looks servers up in revocation lists as libpq does, that
// SIGHUP reads them anew, and that lists which cannot work are refused at once.
func TestRevokedServerIsRefused(t *testing.T) {
	pg := testpg.Start(t)
	d := newDaemon(t)
	lists := filepath.Join(d.dir, "lists.pem")
	revoke := func(revoked ...*x509.Certificate) {
		t.Helper()
		list, err := pg.CA.Revocations(time.Hour, revoked...)
		if err != nil {
			t.Fatal(err)
		}
		write(t, lists, string(list))
	}
	revoke()
	d.configure(pg, settings{TLS: fmt.Sprintf("identity: app, crl: %q", lists)})
	d.start("serve", "--config", d.config)
	d.awaitWarm()
	if got := query(t, d.connect(), "select 1"); got != "1" {
		t.Errorf("with an empty list: %q", got)
	}
	revoke(serverCertificate(t, pg))
	d.cmd.Process.Signal(syscall.SIGHUP)
	d.await("the refusal", func(s *admin.Status) bool { return strings.Contains(s.Routes[0].LastError, "was revoked on") })
	if _, err := d.tryConnect(); sqlState(err) != "08006" || !strings.Contains(err.Error(), "was revoked on") {
		t.Errorf("the function was told %v", err)
	}
	revoke()
	d.cmd.Process.Signal(syscall.SIGHUP)
	d.awaitWarm()

	for name, c := range map[string]struct{ text, settings, sentence string }{
		"no list":       {"nothing", "identity: app, crl: %q", "malformed crl"},
		"missing":       {"", "identity: app, crl: %q", "cannot be read"},
		"checks nobody": {"", "mode: require, crl: %q", "checks no certificate"},
	} {
		path := filepath.Join(t.TempDir(), "lists.pem")
		switch {
		case c.text != "":
			write(t, path, c.text)
		case name == "checks nobody":
			path = lists
		}
		d.configure(pg, settings{TLS: fmt.Sprintf(c.settings, path)})
		if out, err := shell(t, nil, program(t), "check", "--config", d.config); err == nil || !strings.Contains(out, c.sentence) {
			t.Errorf("%s: %v, %s", name, err, out)
		}
	}
}

// serverCertificate reads the certificate that the cluster shows.
func serverCertificate(t *testing.T, pg *throwaway.Cluster) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode([]byte(readFile(t, filepath.Join(pg.DataDir, "server.crt"))))
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
