package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pghandoff/certs"
	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/tests/testpg"
)

// signerEnv makes this program an identity's exec issuer: it takes the request to
// the authority at that URL and prints what that answers.
const signerEnv = "PGHANDOFF_TEST_SIGNER"

func signByURL(authority string) {
	request, _ := io.ReadAll(os.Stdin)
	answer, err := http.Post(authority, "application/pkcs10", bytes.NewReader(request))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer answer.Body.Close()
	to := os.Stdout
	if answer.StatusCode != http.StatusOK {
		to = os.Stderr
		defer os.Exit(1)
	}
	io.Copy(to, answer.Body)
}

// nobody signs nothing.
type nobody struct{}

func (nobody) Issue(context.Context, []byte) ([]byte, error) { return nil, errors.New("nobody signs") }

// certifier is the cluster's authority of clients, which signs certificates of a
// few seconds and can be down.
type certifier struct {
	pg     *throwaway.Cluster
	life   time.Duration
	down   atomic.Bool
	mu     sync.Mutex
	signed int
}

func (c *certifier) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request, _ := io.ReadAll(r.Body)
	if c.down.Load() {
		http.Error(w, "the authority is down for maintenance", http.StatusServiceUnavailable)
		return
	}
	chain, err := c.pg.CA.SignRequest(request, time.Now(), c.life)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	c.signed++
	c.mu.Unlock()
	w.Write(chain)
}

func (c *certifier) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.signed
}

func startIssued(t *testing.T, c *certifier) *rotating {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	authority := httptest.NewServer(c)
	t.Cleanup(authority.Close)
	t.Setenv(signerEnv, authority.URL)
	program(t)
	r := &rotating{daemon: newDaemon(t), pg: c.pg, ends: map[string]time.Time{}}
	r.configure(c.pg, settings{TLS: "identity: turn", Pool: "min_idle: 3, max: 6", Identities: fmt.Sprintf(", turn: {exec: {command: [%q], common_name: %q, storage: %q, roots: %q}, drain_window: 1s}",
		self, c.pg.Role, filepath.Join(r.dir, "identity"), c.pg.RootsFile)})
	r.start("serve", "--config", r.config)
	r.awaitWarm()
	return r
}

// Proves that a certificate which a program has signed is renewed by itself, that
// an authority which is down across its end makes new connections fail at once and
// in a sentence while old ones serve on, that all is well seconds after it is back,
// and that kill -9 amid renewals loses no identity.
func TestIssuedIdentityAndItsAuthority(t *testing.T) {
	pg := testpg.Start(t)
	c := &certifier{pg: pg, life: 9 * time.Second}
	r := startIssued(t, c)
	for n := range uint64(2) {
		eventually(t, "a renewal", func() bool { return r.identity().Generation >= 2+n })
	}
	held := r.connect()
	c.down.Store(true)
	eventually(t, "its certificate's end", func() bool { i := r.identity(); return i.NotAfter != nil && time.Now().After(*i.NotAfter) })
	if got := query(t, held, "select 'serves on'"); got != "serves on" {
		t.Errorf("a connection that was there: %s", got)
	}
	eventually(t, "the trouble in the status", func() bool {
		i := r.identity()
		return strings.Contains(i.LastError, "the authority is down for maintenance") && i.Since != nil && time.Since(*i.Since) > time.Second
	}, func() string { return fmt.Sprintf("%+v", r.identity()) })
	held.Close(t.Context())
	mustPsql(t, pg, "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = 'app'")
	eventually(t, "the refusal", func() bool {
		start := time.Now()
		_, err := r.tryConnect()
		return sqlState(err) == "08006" && strings.Contains(err.Error(), `identity "turn"`) && strings.Contains(err.Error(), "expired") && time.Since(start) < time.Second
	})
	c.down.Store(false)
	back := time.Now()
	r.awaitWarm()
	if took := time.Since(back); took > 10*time.Second {
		t.Errorf("all was well %s after the authority was back", took)
	}
	for range 3 {
		seen := c.count()
		eventually(t, "a renewal", func() bool { return c.count() > seen })
		r.cmd.Process.Signal(syscall.SIGKILL)
		<-r.done
		kept, err := certs.IssuedSource{CommonName: pg.Role, Dir: filepath.Join(r.dir, "identity"), Issuer: nobody{}}.Load(t.Context(), time.Now())
		if kept == nil {
			t.Errorf("nothing is kept: %v", err)
		}
		r.start("serve", "--config", r.config)
		r.awaitWarm()
	}
}

// Proves that a daemon which was stopped past the end of its certificate never
// presents that: the first dial afterwards has the next one, or fails and says why.
func TestFrozenDaemonPresentsNoExpiredCertificate(t *testing.T) {
	pg := testpg.Start(t)
	r := startIssued(t, &certifier{pg: pg, life: 6 * time.Second})
	r.cmd.Process.Signal(syscall.SIGSTOP)
	<-time.After(8 * time.Second)
	mustPsql(t, pg, "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = 'app'")
	r.cmd.Process.Signal(syscall.SIGCONT)
	eventually(t, "a connection", func() bool {
		c, err := r.tryConnect()
		if err != nil {
			if s := sqlState(err); s != "08006" {
				t.Errorf("told %v", err)
			}
			return false
		}
		return query(t, c, "select 1") == "1"
	})
	if log := pg.Log(); strings.Contains(log, "certificate has expired") {
		t.Errorf("the server was shown a certificate that had ended: %s", log)
	}
}
