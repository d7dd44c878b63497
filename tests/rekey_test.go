package tests

import (
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pghandoff/certs"
	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/tests/testpg"
	"pghandoff/tlsstate"
)

// rekey gives the server another certificate and lets it read that.
func rekey(t *testing.T, pg *throwaway.Cluster, c *certs.Issued) {
	t.Helper()
	var owner syscall.Stat_t
	if err := syscall.Stat(pg.DataDir, &owner); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"server.key": c.KeyPEM, "server.crt": c.ChainPEM} {
		path := filepath.Join(pg.DataDir, name)
		write(t, path+".new", string(text))
		if err := os.Chown(path+".new", int(owner.Uid), int(owner.Gid)); err != nil {
			t.Fatal(err)
		}
		os.Chmod(path+".new", 0o600)
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	if err := pg.Reload(); err != nil {
		t.Fatal(err)
	}
	want := c.Certificate.Leaf.SerialNumber.String()
	eventually(t, "the server's new certificate", func() bool {
		s := dialTLS(t, pg.Host, pg.Port, tlsstate.Config{Mode: tlsstate.Require, Host: "localhost"})
		defer s.Close()
		return s.Info().PeerCertificates[0].SerialNumber.String() == want
	})
}

// Proves what becomes of connections when the server's certificate changes: with a
// new key of the same authority nothing; under another one that is trusted, too,
// nothing; when the old authority goes, those that chain to it are replaced and no
// function is refused; and once the certificate has ended new dials fail in a
// sentence, while leases go on.
func TestServerWhoseCertificateChanges(t *testing.T) {
	pg := testpg.Start(t)
	r := startRotating(t, pg, time.Hour, "drain_window: 0s", settings{Pool: "min_idle: 2, max: 4"})
	held := r.connect()
	serves := func(when string) {
		t.Helper()
		if got := query(t, held, "select 'on'"); got != "on" {
			t.Errorf("%s, the lease that was there: %s", when, got)
		}
	}
	fresh := func() string {
		t.Helper()
		mustPsql(t, pg, fmt.Sprintf("select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = 'app' and pid <> %d", held.PgConn().PID()))
		r.awaitWarm()
		c, err := r.tryConnect()
		if err != nil {
			return err.Error()
		}
		defer c.Close(t.Context())
		return query(t, c, "select 'fresh'")
	}
	issue := func(ca *certs.DevCA, life time.Duration) *certs.Issued {
		t.Helper()
		c, err := ca.IssueServer([]string{"localhost", "127.0.0.1"}, life)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	rekey(t, pg, issue(pg.CA, time.Hour))
	serves("with a new key")
	if got := fresh(); got != "fresh" {
		t.Errorf("with a new key: %s", got)
	}
	other, err := certs.NewDevCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r.put("ca.crt", append(pg.CA.RootsPEM(), other.RootsPEM()...))
	eventually(t, "both anchors", func() bool { i := r.identity(); return i.Generation == 2 && i.LastError == "" })
	rekey(t, pg, issue(other, time.Hour))
	serves("under another authority")
	backends := func() string {
		return mustPsql(t, pg, fmt.Sprintf("select string_agg(pid::text, ' ' order by pid) from pg_stat_activity where usename = 'app' and pid <> %d", held.PgConn().PID()))
	}
	before := backends()
	r.put("ca.crt", other.RootsPEM())
	eventually(t, "the old authority is gone", func() bool { i := r.identity(); return i.Generation == 3 && i.LastError == "" })
	eventually(t, "replaced upstreams", func() bool {
		now := strings.Fields(backends())
		for _, pid := range now {
			if strings.Contains(before, pid) {
				return false
			}
		}
		return len(now) >= 2
	})
	serves("without the old authority")
	expired, err := other.Issue(&x509.Certificate{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(-time.Minute), DNSNames: []string{"localhost"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	if err != nil {
		t.Fatal(err)
	}
	rekey(t, pg, expired)
	serves("with a certificate that has ended")
	mustPsql(t, pg, fmt.Sprintf("select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = 'app' and pid <> %d", held.PgConn().PID()))
	eventually(t, "the refusal", func() bool {
		c, err := r.tryConnect()
		if err == nil {
			c.Close(t.Context())
			return false
		}
		return sqlState(err) == "08006" && strings.Contains(err.Error(), "expired")
	})
	serves("at the end")
}

// Proves that sets are taken from writers of every kind: a Kubernetes volume whose
// link moves, one that writes in place, and one that replaces the folder; what new
// connections log in with is the last good one.
func TestWritersOfEveryKind(t *testing.T) {
	pg := testpg.Start(t)
	r := startRotating(t, pg, time.Hour, "drain_window: 0s", settings{Pool: "min_idle: 1, max: 2"})
	inUse := func(c *certs.Issued) {
		t.Helper()
		serial := c.Certificate.Leaf.SerialNumber.String()
		eventually(t, "the new certificate in use", func() bool {
			return mustPsql(t, pg, "select string_agg(distinct client_serial::text, ',') from pg_stat_ssl join pg_stat_activity using (pid) where usename = 'app'") == serial
		}, func() string { return fmt.Sprintf("%+v", r.identity()) })
	}
	c := r.issue(2 * time.Hour)
	for name, text := range map[string][]byte{"tls.key": c.KeyPEM, "tls.crt": c.ChainPEM} { // in place
		f, err := os.OpenFile(r.file(name), os.O_WRONLY|os.O_TRUNC, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range [][]byte{text[:len(text)/2], text[len(text)/2:]} {
			f.Write(part)
			<-time.After(50 * time.Millisecond)
		}
		f.Close()
	}
	inUse(c)

	volume := func(name string, c *certs.Issued) {
		os.Mkdir(r.file(name), 0o700)
		r.put(name+"/tls.key", c.KeyPEM)
		r.put(name+"/tls.crt", c.ChainPEM)
	}
	c = r.issue(3 * time.Hour)
	volume("..one", c)
	os.Symlink("..one", r.file("..data"))
	for _, name := range []string{"tls.key", "tls.crt"} {
		os.Symlink("..data/"+name, r.file(name+".link"))
		if err := os.Rename(r.file(name+".link"), r.file(name)); err != nil {
			t.Fatal(err)
		}
	}
	inUse(c)
	c = r.issue(4 * time.Hour)
	volume("..two", c)
	os.Symlink("..two", r.file("..data_tmp"))
	os.Rename(r.file("..data_tmp"), r.file("..data"))
	inUse(c)

	c = r.issue(5 * time.Hour)
	volume("..three", c)
	os.Rename(r.file("..two"), r.file("gone"))
	os.Rename(r.file("..three"), r.file("..two")) // the folder behind the link
	r.put("touched", nil)                         // or it is found at the next look
	inUse(c)
	if s := r.stderr.String(); strings.Count(s, "identity not renewed") > 4 {
		t.Errorf("refusals are told again and again: %s", s)
	}
}
