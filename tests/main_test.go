package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/proxy"
	"pghandoff/proxy/admin"
	"pghandoff/proxy/audit"
	"pghandoff/tests/testpg"
)

func TestMain(m *testing.M) {
	if authority := os.Getenv(signerEnv); authority != "" {
		signByURL(authority)
		return
	}
	code := testpg.Main(m)
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

var built struct {
	once sync.Once
	dir  string
	path string
	err  error
}

// program builds pghandoff, once, statically, so that it also runs in a
// container from scratch; under the race detector with it instead.
func program(t testing.TB) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "pghandoff-test-"); built.err != nil {
			return
		}
		os.Chmod(built.dir, 0o755) // functions of other users run it
		built.path = filepath.Join(built.dir, "pghandoff")
		cmd := exec.Command("go", "build", "-o", built.path, "pghandoff/cmd/pghandoff")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if raceEnabled { // then the daemon too is to be watched
			cmd = exec.Command("go", "build", "-race", "-o", built.path, "pghandoff/cmd/pghandoff")
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("build: %v\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.path
}

// daemon is a pghandoff serve of its own process.
type daemon struct {
	t        testing.TB
	cmd      *exec.Cmd
	dir      string // of everything below
	runDir   string
	config   string
	auditLog string
	stderr   *lockedBuffer
	done     chan struct{}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// loopsEnv names the environment variable that says how many event loops the
// daemons of tests have that do not choose for themselves. CI has a run with
// one, in which all leases share it, and one with two, between which they move.
const loopsEnv = "PGHANDOFF_TEST_LOOPS"

// settings fill the template of a configuration with one route.
type settings struct {
	Global string // further top-level lines, with loops or with what loopsEnv says
	Route  string // further lines of the route, indented by four spaces
	Pool   string // inside pool: {…}
	TLS    string // inside tls: {…}, in place of identity and mode
	Allow  string // inside allow: […]; empty: anybody who can open the socket
	Mode   string // of the sockets; empty: 0666
	User   string
	Roots  string // trust anchors, in place of the cluster's
	Secret string // the password, in place of the cluster's
	// further identities, each with a comma in front
	Identities string
}

// configure writes a configuration for the cluster into the daemon's folder.
func (d *daemon) configure(pg *throwaway.Cluster, s settings) {
	d.t.Helper()
	secret := filepath.Join(d.dir, "password")
	if s.Secret == "" {
		s.Secret = pg.Password
	}
	write(d.t, secret, s.Secret+"\n")
	or := func(a, b string) string {
		if a == "" {
			return b
		}
		return a
	}
	if loops := os.Getenv(loopsEnv); loops != "" && !strings.Contains(s.Global, "loops:") {
		s.Global += "\nloops: " + loops
	}
	identity := fmt.Sprintf("roots: %q", or(s.Roots, pg.RootsFile))
	if pg.ClientCertFile != "" {
		identity += fmt.Sprintf(", cert: %q, key: %q", pg.ClientCertFile, pg.ClientKeyFile)
	}
	write(d.t, d.config, fmt.Sprintf(`run_dir: %q
socket: {mode: %q}
log: {level: debug}
audit: {file: %q}
%s
identities: {app: {file: {%s}}%s}
routes:
  orders:
    servers: ["127.0.0.1:%d"]
    user: %q
    password: {file: %q}
    tls: {%s}
    pool: {%s}
    allow: [%s]
%s
`, d.runDir, or(s.Mode, "0666"), d.auditLog, s.Global, identity, s.Identities, pg.Port, or(s.User, pg.Role), secret,
		or(s.TLS, "identity: app"), or(s.Pool, "min_idle: 2, max: 10"), or(s.Allow, "any: true"), s.Route))
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// newDaemon prepares a folder; start starts.
func newDaemon(t testing.TB) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgh-")
	if err != nil {
		t.Fatal(err)
	}
	os.Chmod(dir, 0o755)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &daemon{t: t, dir: dir, runDir: filepath.Join(dir, "run"), config: filepath.Join(dir, "pghandoff.yaml"),
		auditLog: filepath.Join(dir, "audit.jsonl"), stderr: new(lockedBuffer)}
}

// serve starts a daemon for the cluster and waits until its route is warm.
func serve(t testing.TB, pg *throwaway.Cluster, s settings) *daemon {
	t.Helper()
	d := newDaemon(t)
	d.configure(pg, s)
	d.start("serve", "--config", d.config)
	d.awaitWarm()
	return d
}

// start runs the program until the test ends.
func (d *daemon) start(args ...string) {
	d.t.Helper()
	d.cmd = exec.Command(program(d.t), args...)
	d.cmd.Stderr, d.cmd.Stdout = d.stderr, d.stderr
	d.cmd.Env = os.Environ()
	d.run()
}

func (d *daemon) run() {
	d.t.Helper()
	d.done = make(chan struct{})
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	go func() { // ended by stop
		d.cmd.Wait()
		close(d.done)
	}()
	d.t.Cleanup(d.stop)
}

// stop ends the daemon as an operator would and checks that it leaves nothing.
func (d *daemon) stop() {
	d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.done:
	case <-time.After(40 * time.Second):
		d.cmd.Process.Signal(syscall.SIGQUIT) // shows where it hangs
		<-d.done
		d.t.Error("the daemon did not stop")
	}
	out := d.stderr.String()
	if d.t.Failed() {
		d.t.Logf("the daemon said:\n%s", lastBytes(out, 8<<10))
	}
	for _, bad := range []string{"panic:", "DATA RACE", "fatal error:"} {
		if strings.Contains(out, bad) {
			d.t.Errorf("the daemon said %q", bad)
		}
	}
}

func lastBytes(s string, n int) string { return s[max(0, len(s)-n):] }

func (d *daemon) client() *admin.Client {
	return admin.Dial(filepath.Join(proxy.ControlDir("", d.runDir), proxy.ControlSocket))
}

// awaitWarm waits until every route has its idle upstreams.
func (d *daemon) awaitWarm() {
	d.t.Helper()
	d.await("warm upstreams", func(s *admin.Status) bool {
		for _, r := range s.Routes {
			if r.Idle < r.MinIdle {
				return false
			}
		}
		return true
	})
}

// await polls the status until good says so.
func (d *daemon) await(what string, good func(*admin.Status) bool) {
	d.t.Helper()
	var last *admin.Status
	eventually(d.t, what, func() bool {
		select {
		case <-d.done:
			d.t.Fatalf("the daemon ended while waiting for %s:\n%s", what, lastBytes(d.stderr.String(), 4<<10))
		default:
		}
		s, err := d.client().Status(d.t.Context())
		last = s
		return err == nil && good(s)
	}, func() string { return fmt.Sprintf("%+v", last) })
}

// eventually polls a condition for 15 s.
func eventually(t testing.TB, what string, good func() bool, state ...func() string) {
	t.Helper()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	deadline := time.After(15 * time.Second)
	for !good() {
		select {
		case <-look.C:
		case <-deadline:
			for _, s := range state {
				t.Log(s())
			}
			t.Fatalf("waited 15 s in vain for: %s", what)
		}
	}
}

// events returns the lines of the audit file.
func (d *daemon) events() []audit.Event {
	d.t.Helper()
	data, err := os.ReadFile(d.auditLog)
	if err != nil {
		d.t.Fatal(err)
	}
	var out []audit.Event
	for line := range bytes.Lines(data) {
		var e audit.Event
		if bytes.HasSuffix(line, []byte("\n")) {
			if err := json.Unmarshal(line, &e); err != nil {
				d.t.Fatalf("audit line %q: %v", line, err)
			}
			out = append(out, e)
		}
	}
	return out
}

// awaitEvent waits for an audit line.
func (d *daemon) awaitEvent(what string, is func(audit.Event) bool) (found audit.Event) {
	d.t.Helper()
	eventually(d.t, "audit line "+what, func() bool {
		for _, e := range d.events() {
			if is(e) {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

// connect returns a connection by the wire socket that ends with the test.
func (d *daemon) connect(options ...string) *pgx.Conn {
	d.t.Helper()
	c, err := d.tryConnect(options...)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func (d *daemon) tryConnect(options ...string) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(d.t.Context(), 20*time.Second)
	defer cancel()
	return pgx.Connect(ctx, "host="+d.runDir+" user=app dbname=orders "+strings.Join(options, " "))
}

// query returns the first column of the first row as text.
func query(t testing.TB, c *pgx.Conn, sql string, args ...any) string {
	t.Helper()
	var s *string
	if err := c.QueryRow(t.Context(), "select ("+sql+")::text", args...).Scan(&s); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	if s == nil {
		return ""
	}
	return *s
}

func execSQL(t testing.TB, c *pgx.Conn, sql string) {
	t.Helper()
	if _, err := c.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// shell runs a program with the given environment added and returns both of
// its outputs.
func shell(t testing.TB, env []string, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
