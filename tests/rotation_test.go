package tests

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pghandoff/certs"
	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/proxy/admin"
	"pghandoff/proxy/audit"
	"pghandoff/tests/testpg"
)

// rotating is a daemon whose identity "turn" is in files that a test replaces.
type rotating struct {
	*daemon
	pg   *throwaway.Cluster
	mu   sync.Mutex
	ends map[string]time.Time // of certificates by their serial number, as PostgreSQL shows it
}

func (r *rotating) file(name string) string { return filepath.Join(r.dir, name) }

// put replaces a file as a careful writer does.
func (r *rotating) put(name string, text []byte) {
	r.t.Helper()
	write(r.t, r.file(name+".new"), string(text))
	os.Chmod(r.file(name+".new"), 0o600)
	if err := os.Rename(r.file(name+".new"), r.file(name)); err != nil {
		r.t.Fatal(err)
	}
}

// issue makes a client certificate that lives so long.
func (r *rotating) issue(life time.Duration) *certs.Issued {
	r.t.Helper()
	now := time.Now()
	c, err := r.pg.CA.Issue(&x509.Certificate{Subject: pkix.Name{CommonName: r.pg.Role}, NotBefore: now.Add(-time.Second), NotAfter: now.Add(life),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	leaf := c.Certificate.Leaf
	r.ends[leaf.SerialNumber.String()] = leaf.NotAfter
	return c
}

// renew puts a new pair into place, the key first.
func (r *rotating) renew(life time.Duration) {
	r.t.Helper()
	c := r.issue(life)
	r.put("tls.key", c.KeyPEM)
	r.put("tls.crt", c.ChainPEM)
}

func startRotating(t *testing.T, pg *throwaway.Cluster, life time.Duration, identity string, s settings) *rotating {
	t.Helper()
	program(t) // it may have to be built, and certificates do not wait
	r := &rotating{daemon: newDaemon(t), pg: pg, ends: map[string]time.Time{}}
	r.put("ca.crt", pg.CA.RootsPEM())
	r.renew(life)
	s.Identities = fmt.Sprintf(", turn: {file: {cert: %q, key: %q, roots: %q}, %s}", r.file("tls.crt"), r.file("tls.key"), r.file("ca.crt"), identity)
	s.TLS = "identity: turn" + s.TLS
	r.configure(pg, s)
	r.start("serve", "--config", r.config)
	r.awaitWarm()
	return r
}

// identity returns what the status says of it.
func (r *rotating) identity() (i admin.Identity) {
	r.t.Helper()
	s, err := r.client().Status(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	for _, i := range s.Identities {
		if i.Name == "turn" {
			return i
		}
	}
	r.t.Fatal("no identity")
	return i
}

// Proves that certificates are renewed under load without a query lost or done
// twice: a ledger has what functions were told, no backend has a certificate that
// has ended, and there are at most four connections more than the pool has.
func TestRotationLosesNoQuery(t *testing.T) {
	life, every, rounds, idle, busy := 9*time.Second, 3*time.Second, 4, 12, 6
	if whole() {
		life, every, rounds, idle, busy = 27*time.Second, 8*time.Second, 6, 48, 12
	}
	pg := testpg.Start(t)
	r := startRotating(t, pg, life, "drain_window: 2s", settings{Pool: fmt.Sprintf("min_idle: %d, max: %d, max_lifetime: 0s", idle, idle+busy)})
	c := r.connect()
	execSQL(t, c, "create table ledger (id text)")
	c.Close(t.Context()) // its certificate may end before the test
	acknowledged := make([][]string, busy)
	stop := make(chan struct{})
	var working sync.WaitGroup
	for f := range busy {
		working.Go(func() { acknowledged[f] = r.keepBooks(f, stop) }) // ended by stop
	}
	working.Go(func() { r.watchBackends(stop, idle+busy+4) }) // ended by stop
	turn := time.NewTicker(every)
	defer turn.Stop()
	for range rounds {
		<-turn.C
		r.renew(life)
	}
	<-turn.C
	close(stop)
	working.Wait()
	if i := r.identity(); i.Generation != uint64(rounds+1) || i.LastError != "" {
		t.Errorf("after %d rotations: %+v", rounds, i)
	}
	want := map[string]bool{}
	for _, ids := range acknowledged {
		for _, id := range ids {
			want[id] = true
		}
	}
	got := strings.Fields(mustPsql(t, pg, "select id from ledger"))
	for _, id := range got {
		if !want[id] {
			t.Errorf("%s was not acknowledged, or is there twice", id)
		}
		delete(want, id)
	}
	if len(want) > 0 || len(got) < 100*rounds {
		t.Errorf("%d of %d entries are lost", len(want), len(got))
	}
	replaced := 0
	for _, e := range r.events() {
		if e.Event == audit.UpstreamClosed && e.Outcome == "identity rotated" {
			replaced++
		}
	}
	t.Logf("%d entries, %d upstreams replaced in %d rotations", len(got), replaced, rounds)
	if replaced < rounds*idle/2 {
		t.Errorf("%d upstreams replaced", replaced)
	}
}

// keepBooks is a function: it writes entries, each by a lease of its own or several,
// and returns those that it was told are there.
func (r *rotating) keepBooks(f int, stop chan struct{}) (told []string) {
	for n := 0; ; {
		select {
		case <-stop:
			return told
		default:
		}
		c, err := r.tryConnect()
		if err != nil {
			r.t.Errorf("function %d: %v", f, err)
			return told
		}
		for range 1 + n%7 {
			id := fmt.Sprintf("%d-%d", f, n)
			if _, err := c.Exec(r.t.Context(), "insert into ledger values ($1)", id); err != nil {
				r.t.Errorf("function %d: %v", f, err)
				return told
			}
			told = append(told, id)
			n++
		}
		c.Close(r.t.Context())
	}
}

// watchBackends looks at what PostgreSQL says of the backends.
func (r *rotating) watchBackends(stop chan struct{}, most int) {
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-stop:
			return
		case <-look.C:
		}
		out, err := r.pg.Psql(r.t.Context(), "select coalesce(client_serial::text, '-') from pg_stat_ssl join pg_stat_activity using (pid) where usename = 'app'")
		if err != nil {
			r.t.Error(err)
			return
		}
		serials := strings.Fields(out)
		if len(serials) > most {
			r.t.Errorf("%d backends", len(serials))
		}
		now := time.Now()
		r.mu.Lock()
		for _, s := range serials {
			if end, ok := r.ends[s]; ok && now.After(end) {
				r.t.Errorf("a backend has a certificate that ended %s ago", now.Sub(end))
			}
		}
		r.mu.Unlock()
	}
}

// Proves that a set which cannot be meant keeps the one in use, is told once and by
// its reason, and that the next good one is taken.
func TestBadSetsKeepTheGoodOne(t *testing.T) {
	pg := testpg.Start(t)
	r := startRotating(t, pg, time.Hour, "drain_window: 0s", settings{Pool: "min_idle: 1, max: 2"})
	stranger, err := certs.NewDevCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	generation := r.identity().Generation
	for _, c := range []struct{ name, want string }{
		{"mismatched", "does not belong"}, {"truncated", "is cut off"}, {"server", "lacks clientAuth"}, {"stranger", "does not log in"}, {"earlier", "before the one in use"}, {"nothing", "cannot be read"},
	} {
		pair := r.issue(2 * time.Hour)
		switch c.name {
		case "mismatched":
			pair.KeyPEM = r.issue(time.Hour).KeyPEM
		case "truncated":
			pair.ChainPEM = append(pair.ChainPEM, pair.ChainPEM[:len(pair.ChainPEM)/2]...)
		case "server":
			pair, err = pg.CA.IssueServer([]string{pg.Role}, 2*time.Hour)
		case "stranger":
			pair, err = stranger.IssueClient(pg.Role, 2*time.Hour)
		case "earlier":
			pair = r.issue(30 * time.Minute)
		}
		if err != nil {
			t.Fatal(err)
		}
		r.put("tls.key", pair.KeyPEM)
		r.put("tls.crt", pair.ChainPEM)
		if c.name == "nothing" {
			os.Remove(r.file("tls.crt"))
		}
		eventually(t, c.name+" is refused", func() bool { return strings.Contains(r.identity().LastError, c.want) }, func() string { return fmt.Sprintf("%+v", r.identity()) })
		if i := r.identity(); i.Generation != generation || i.Since == nil {
			t.Errorf("%s: %+v", c.name, i)
		}
		f := r.connect()
		if got := query(t, f, "select 1"); got != "1" {
			t.Errorf("%s: %s", c.name, got)
		}
		f.Close(t.Context())
	}
	if n := strings.Count(r.stderr.String(), "before the one in use"); n > 1 {
		t.Errorf("one refusal is logged %d times", n)
	}
	r.renew(3 * time.Hour)
	eventually(t, "the good one", func() bool { i := r.identity(); return i.Generation > generation && i.LastError == "" })
	generation = r.identity().Generation
	r.renew(time.Hour) // ends earlier, and an operator wants it
	r.cmd.Process.Signal(syscall.SIGHUP)
	eventually(t, "the one that is asked for", func() bool { i := r.identity(); return i.Generation > generation && i.LastError == "" })
}

// Proves what becomes of leases whose certificate ends while they run: they go on,
// and the audit says so, or they end when they are idle.
func TestLeasePastTheEndOfItsCertificate(t *testing.T) {
	pg := testpg.Start(t)
	for _, c := range []struct{ expired, idle, busy string }{{"keep", "1", "1"}, {"close", "57P01", "57P01"}} {
		t.Run(c.expired, func(t *testing.T) {
			r := startRotating(t, pg, 5*time.Second, "drain_window: 0s", settings{Pool: "min_idle: 1, max: 3", TLS: ", expired: " + c.expired})
			idle, busy := r.session(), r.session()
			busy.send(message('Q', "select 'whole' from pg_sleep(6)\x00"))
			r.renew(time.Hour)
			eventually(t, "the new certificate", func() bool { return r.identity().Generation == 2 })
			if got := busy.answers(); got != "TD(whole)CZ" {
				t.Errorf("the busy function reads %s", got)
			}
			for name, f := range map[string]*raw{"idle": idle, "busy": busy} {
				f.conn.Write(message('Q', "select 1\x00")) // it may be gone
				if got := f.outcome(); c.expired == "keep" && got != "Z" || c.expired == "close" && got != "57P01" {
					t.Errorf("%s: %s", name, got)
				}
			}
			if c.expired == "keep" {
				r.awaitEvent("the end", func(e audit.Event) bool {
					return e.Event == audit.IdentityExpired && e.Lease != "" && e.Identity == "turn"
				})
			}
		})
	}
}

// outcome reads up to ReadyForQuery or an error and says which.
func (r *raw) outcome() string {
	for {
		typ, body, err := r.frames.Next()
		if err != nil {
			return err.Error()
		}
		switch typ {
		case 'Z':
			return "Z"
		case 'E':
			for _, field := range strings.Split(string(body), "\x00") {
				if strings.HasPrefix(field, "C") {
					return field[1:]
				}
			}
		}
	}
}

// Proves that a trust anchor more drops nobody, and that those whose server chains
// to one that is gone are replaced.
func TestTrustAnchorsComeAndGo(t *testing.T) {
	pg := testpg.Start(t)
	r := startRotating(t, pg, time.Hour, "drain_window: 0s", settings{Pool: "min_idle: 3, max: 3"})
	backends := func() string {
		return mustPsql(t, pg, "select string_agg(pid::text, ' ' order by pid) from pg_stat_activity where usename = 'app'")
	}
	before := backends()
	other, err := certs.NewDevCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r.put("ca.crt", append(pg.CA.RootsPEM(), other.RootsPEM()...))
	eventually(t, "one anchor more", func() bool { return r.identity().Generation == 2 })
	r.put("ca.crt", other.RootsPEM())
	eventually(t, "its refusal", func() bool { return strings.Contains(r.identity().LastError, "does not log in") })
	if now := backends(); now != before {
		t.Errorf("the backends were %s and are %s", before, now)
	}
	r.put("ca.crt", pg.CA.RootsPEM())
	eventually(t, "the anchors as they were", func() bool { i := r.identity(); return i.Generation > 2 && i.LastError == "" })
	if now := backends(); now != before {
		t.Errorf("although the anchor of these was never gone, the backends were %s and are %s", before, now)
	}
}

// Proves what an operator's revocation does: idle connections are closed at once,
// an idle lease is told, a busy one finishes its query, no new connection is made
// with the certificate, and the next one is used.
func TestRevokedIdentityIsGivenUp(t *testing.T) {
	pg := testpg.Start(t)
	r := startRotating(t, pg, time.Hour, "drain_window: 1h", settings{Pool: "min_idle: 2, max: 4"})
	idle, busy := r.session(), r.session()
	busy.send(message('Q', "select 'whole' from pg_sleep(2)\x00"))
	waitBusy(t, pg.Psql)
	identity := func(args ...string) string {
		t.Helper()
		out, err := shell(t, nil, program(t), append([]string{"identity", "--run-dir", r.runDir}, args...)...)
		if err != nil {
			return err.Error() + ": " + out
		}
		return out
	}
	if got := identity("rotate", "turn"); !strings.Contains(got, "nothing new") {
		t.Errorf("rotate without a new set says %q", got)
	}
	if got := identity("revoke", "nobody"); !strings.Contains(got, `no identity "nobody"`) {
		t.Errorf("revoke of nobody says %q", got)
	}
	if got := identity("revoke", "turn"); got != "" {
		t.Fatalf("revoke says %q", got)
	}
	if got := idle.outcome(); got != "57P01" {
		t.Errorf("the idle function reads %s", got)
	}
	if got := busy.answers(); got != "TD(whole)CZ" {
		t.Errorf("the busy function reads %s", got)
	}
	if got := busy.outcome(); got != "57P01" {
		t.Errorf("and then %s", got)
	}
	eventually(t, "no backend", func() bool {
		return mustPsql(t, pg, "select count(*) from pg_stat_activity where usename = 'app'") == "0"
	})
	if _, err := r.tryConnect(); sqlState(err) != "08006" || !strings.Contains(err.Error(), "was revoked by an operator") {
		t.Errorf("a new function is told %v", err)
	}
	r.renew(2 * time.Hour)
	r.awaitWarm()
	if got := query(t, r.connect(), "select 1"); got != "1" {
		t.Errorf("with the new certificate: %s", got)
	}
}
