package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/proxy/admin"
	"pghandoff/proxy/audit"
	"pghandoff/tests/testca"
	"pghandoff/tests/testpg"
)

// stranger is a uid that has nothing to do with the daemon.
const stranger = 4242

// as runs a program as another uid, which only root can.
func as(t testing.TB, uid uint32, name string, args ...string) (string, error) {
	t.Helper()
	if os.Geteuid() != 0 {
		testpg.Missing(t, "only root can run a function as another user: run the tests as root")
	}
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Proves that the kernel's word decides: a uid outside the rules gets 28000
// with the reason, by either door, and the audit says who it was.
func TestWrongUidIsRefused(t *testing.T) {
	psql := testpg.Require(t, "psql", "postgresql-client")
	pg := testpg.Start(t)
	d := serve(t, pg, settings{Allow: fmt.Sprintf("{uid: %d}, {uid: 4243, gid: 1}, {gid: 4244}", os.Geteuid())})
	out, err := as(t, stranger, psql, "-h", d.runDir, "-U", "app", "-c", "select 1", "orders")
	if err == nil || !strings.Contains(out, `uid 4242 may not use route "orders"`) {
		t.Errorf("psql: %v, %s", err, out)
	}
	out, err = as(t, stranger, program(t), "exec", "--run-dir", d.runDir, "-d", "orders", "--", "/bin/true")
	if err == nil || !strings.Contains(out, `uid 4242 may not use route "orders"`) || !strings.Contains(out, "28000") {
		t.Errorf("exec: %v, %s", err, out)
	}
	if _, err = as(t, 4243, psql, "-h", d.runDir, "-U", "app", "-c", "select 1", "orders"); err == nil {
		t.Error("a rule with two keys must match in both")
	}
	if out, err = as(t, 4244, psql, "-h", d.runDir, "-U", "app", "-c", "select 1", "orders"); err != nil {
		t.Errorf("a uid whose group is allowed: %v, %s", err, out)
	}
	e := d.awaitEvent("lease.denied", func(e audit.Event) bool { return e.Event == audit.LeaseDenied })
	if e.SQLState != "28000" || e.Peer == nil || e.Peer.UID != stranger || e.Route != "orders" || e.Outcome != "not_allowed" {
		t.Errorf("audit: %+v", e)
	}
}

// Proves that without rules only root and the daemon's own user get in.
func TestWithoutRulesOnlyTheOwnUser(t *testing.T) {
	psql := testpg.Require(t, "psql", "postgresql-client")
	pg := testpg.Start(t)
	d := serve(t, pg, settings{Allow: " "})
	if got := query(t, d.connect(), "select 1"); got != "1" {
		t.Errorf("the own user got %q", got)
	}
	if out, err := as(t, stranger, psql, "-h", d.runDir, "-U", "app", "-c", "select 1", "orders"); err == nil || !strings.Contains(out, "may not use") {
		t.Errorf("a stranger: %v, %s", err, out)
	}
	if out, err := as(t, stranger, program(t), "status", "--run-dir", d.runDir); err == nil {
		t.Errorf("a stranger reads the status: %s", out)
	}
}

// Proves that each way in which a server cannot be used gives a clear sentence
// of its own, to the person who checks and to the function that waits.
func TestEachFailureHasItsOwnSentence(t *testing.T) {
	pg := testpg.Start(t, testpg.Setting("listen_addresses", "127.0.0.1,127.0.0.2"))
	wrong := func(fault testca.Fault) testca.Files {
		return testca.Write(t, pg.CA, testca.Client(t, pg.CA, pg.Role, fault))
	}
	other := testca.New(t)
	roots := filepath.Join(t.TempDir(), "other.pem")
	write(t, roots, string(other.RootsPEM()))
	free := freePort(t)
	for _, c := range []struct {
		name     string
		change   func(text string) string
		sentence string // in check --connect
		atStart  bool   // the configuration itself is refused
		code     string // what a function is told
	}{
		{"expired client certificate", files(pg, wrong(testca.Expired)), "expired", true, ""},
		{"client certificate not yet valid", files(pg, wrong(testca.NotYetValid)), "valid only in", true, ""},
		{"client certificate for servers only", files(pg, wrong(testca.WrongUsage)), "client", true, ""},
		{"client certificate of another CA", files(pg, wrong(testca.WrongCA)), "unknown_ca", false, "08006"},
		{"no client certificate", func(s string) string { return strings.Replace(s, "identity: app", "roots: "+pg.RootsFile, 1) }, "certificate", false, ""},
		{"wrong CA", func(s string) string { return strings.Replace(s, "identity: app", "identity: app, roots: "+roots, 1) }, "unknown authority", false, "08006"},
		{"wrong host name", func(s string) string { return strings.Replace(s, "127.0.0.1:", "127.0.0.2:", 1) }, "127.0.0.2", false, "08006"},
		{"refused password", func(s string) string { return strings.Replace(s, "/password", "/wrong-password", 1) }, "password authentication failed", false, "28P01"},
		{"no such role", func(s string) string { return strings.Replace(s, `user: "app"`, `user: "nobody"`, 1) }, "nobody", false, ""},
		{"nobody listens", func(s string) string {
			return strings.Replace(s, fmt.Sprintf("127.0.0.1:%d", pg.Port), fmt.Sprintf("127.0.0.1:%d", free), 1)
		}, "connection refused", false, "08001"},
		{"host name not found", func(s string) string { return strings.Replace(s, "127.0.0.1:", "no-such-host.invalid:", 1) }, "not found", false, "08001"},
		{"password file missing", func(s string) string { return strings.Replace(s, "/password", "/no-password", 1) }, "no-password", false, "08001"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDaemon(t)
			d.configure(pg, settings{Pool: "min_idle: 1, max: 2, wait_timeout: 10s"})
			write(t, filepath.Join(d.dir, "wrong-password"), "hush-hush\n")
			text, err := os.ReadFile(d.config)
			if err != nil {
				t.Fatal(err)
			}
			changed := c.change(string(text))
			if changed == string(text) {
				t.Fatal("the test changes nothing")
			}
			write(t, d.config, changed)
			out, err := shell(t, nil, program(t), "check", "--connect", "--config", d.config)
			if err == nil || !strings.Contains(out, c.sentence) || strings.Contains(out, "hush-hush") {
				t.Errorf("check: %v, %s", err, out)
			}
			t.Logf("check says: %s", strings.TrimSpace(out))
			if c.atStart {
				return
			}
			d.start("serve", "--config", d.config)
			eventually(t, "the daemon serves", func() bool {
				_, err := d.client().Status(t.Context())
				return err == nil
			})
			_, err = d.tryConnect()
			if err == nil || c.code != "" && sqlState(err) != c.code {
				t.Errorf("the function got %v", err)
			}
			if err != nil && c.code != "08001" && !strings.Contains(err.Error(), c.sentence) {
				t.Errorf("the function was told %v", err)
			}
			d.await("the reason in the status", func(s *admin.Status) bool { return s.Routes[0].LastError != "" })
		})
	}
}

// files puts other certificate files into a configuration.
func files(pg *throwaway.Cluster, f testca.Files) func(string) string {
	return func(s string) string {
		return strings.NewReplacer(pg.ClientCertFile, f.Cert, pg.ClientKeyFile, f.Key).Replace(s)
	}
}

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// Proves that no secret is where somebody could read it: logs, audit, status,
// command line, environment of functions.
func TestNoSecretShows(t *testing.T) {
	pg := testpg.Start(t)
	d := newDaemon(t)
	t.Setenv("PGHANDOFF_URL", pg.URL())
	d.start("serve", "--run-dir", d.runDir)
	d.awaitWarm()
	key, err := os.ReadFile(pg.ClientKeyFile)
	if err != nil {
		t.Fatal(err)
	}
	secrets := map[string]string{"password": pg.Password, "key": strings.Split(string(key), "\n")[1]}
	places := map[string]string{}
	places["/proc/PID/cmdline"] = readFile(t, fmt.Sprintf("/proc/%d/cmdline", d.cmd.Process.Pid))
	out, err := shell(t, nil, program(t), "exec", "--run-dir", d.runDir, "--", "/usr/bin/env")
	if err != nil {
		t.Fatal(err, out)
	}
	places["environment of a function"] = out
	if !strings.Contains(out, "PGHANDOFF_FDS=3") {
		t.Errorf("the environment is not a function's: %s", out)
	}
	status, err := shell(t, nil, program(t), "status", "--json", "--run-dir", d.runDir)
	if err != nil {
		t.Fatal(err, status)
	}
	places["status"] = status
	pg.Psql(t.Context(), "alter role app password 'another'") // makes logins fail
	pg.Psql(t.Context(), "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'app'")
	d.await("a failed login", func(s *admin.Status) bool { return s.Routes[0].LastError != "" })
	if _, err := d.tryConnect(); err == nil {
		t.Error("the login should fail")
	} else {
		places["error of a function"] = err.Error()
	}
	check, _ := shell(t, nil, program(t), "check", "--connect")
	places["check"] = check
	places["log and audit"] = d.stderr.String()
	for place, text := range places {
		for name, secret := range secrets {
			if text == "" || strings.Contains(text, secret) {
				t.Errorf("%s: %d bytes, %s shows", place, len(text), name)
			}
		}
	}
	if os.Geteuid() == 0 {
		if limits := readFile(t, fmt.Sprintf("/proc/%d/limits", d.cmd.Process.Pid)); !strings.Contains(limits, "Max core file size        0                    0") {
			t.Errorf("core dumps are possible:\n%s", limits)
		}
	}
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Proves that a uid which asks without reading, on as many connections as it
// likes, and one that holds all the leases it may, leave every other uid served
// at once, and that grants which nobody reads are withdrawn.
func TestOneGreedyUidDoesNotStarveTheOthers(t *testing.T) {
	pg := testpg.Start(t)
	d := serve(t, pg, settings{Global: "limits: {leases: 5, waiting: 5, connections: 400}", Pool: "min_idle: 2, max: 15, wait_timeout: 10s"})
	for range 300 {
		c, err := net.Dial("unix", filepath.Join(d.runDir, "handoff.sock"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		fmt.Fprintln(c, `{"v":1,"op":"acquire","database":"orders","user":"greedy","state":"ready"}`)
	}
	d.await("five leases", func(s *admin.Status) bool { return len(s.Leases) == 5 })
	servedAtOnce(t, d, 4301)
	withdrawn := func() (n int) {
		for _, e := range d.events() {
			if e.Event == audit.LeaseRevoked && e.Peer.UID == uint32(os.Geteuid()) {
				n++
			}
		}
		return n
	}
	eventually(t, "the unread grants to be withdrawn", func() bool { return withdrawn() >= 5 })
	d.await("no lease", func(s *admin.Status) bool { return len(s.Leases) == 0 })

	for range 5 {
		d.session()
	}
	if _, err := d.tryConnect(); sqlState(err) != "53300" || !strings.Contains(err.Error(), "limit of 5") {
		t.Errorf("a sixth lease: %v", err)
	}
	servedAtOnce(t, d, 4302)
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid))
	if err != nil || len(open) > 400 {
		t.Errorf("%d descriptors, %v", len(open), err)
	}
}

// servedAtOnce runs a function as another uid.
func servedAtOnce(t *testing.T, d *daemon, uid uint32) {
	t.Helper()
	start := time.Now()
	out, err := as(t, uid, program(t), "exec", "--run-dir", d.runDir, "-d", "orders", "--state", "ready", "--", "/bin/true")
	if took := time.Since(start); err != nil || took > time.Second {
		t.Errorf("uid %d: served in %s, %v, %s", uid, took, err, out)
	}
}

// Proves that `status --json` is JSON with what a person wants to know.
func TestStatus(t *testing.T) {
	pg := testpg.Start(t)
	d := serve(t, pg, settings{})
	d.connect()
	out, err := shell(t, nil, program(t), "status", "--json", "--run-dir", d.runDir)
	var s admin.Status
	if err != nil || json.NewDecoder(bytes.NewReader([]byte(out))).Decode(&s) != nil {
		t.Fatalf("%v, %s", err, out)
	}
	if len(s.Leases) != 1 || s.Leases[0].UID != uint32(os.Geteuid()) || len(s.Identities) != 1 || s.Identities[0].Subject != "CN=app" || s.Routes[0].Leased != 1 {
		t.Errorf("got %+v", s)
	}
	text, err := shell(t, nil, program(t), "status", "--run-dir", d.runDir)
	if err != nil || !strings.Contains(text, s.Leases[0].ID) || !strings.Contains(text, "CN=app") {
		t.Errorf("%v, %s", err, text)
	}
	_, err = shell(t, nil, program(t), "status", "--run-dir", d.dir)
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 3 {
		t.Errorf("no daemon: %v", err)
	}
}
