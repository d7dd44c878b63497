package tests

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/proxy/audit"
	"pghandoff/tests/testpg"
)

// standby starts a standby of a cluster and returns its port.
func standby(t *testing.T, pg *throwaway.Cluster) (port int, dir string) {
	t.Helper()
	var owner syscall.Stat_t
	if err := syscall.Stat(pg.DataDir, &owner); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "pgh-standby-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chown(dir, int(owner.Uid), int(owner.Gid)); err != nil {
		t.Fatal(err)
	}
	as := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(pg.BinDir, name), args...)
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if os.Geteuid() == 0 {
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}
		}
		return cmd
	}
	data := filepath.Join(dir, "data")
	if out, err := as("pg_basebackup", "-h", pg.SocketDir, "-p", strconv.Itoa(pg.Port), "-U", "postgres", "-D", data, "-R", "-X", "stream", "--checkpoint=fast").CombinedOutput(); err != nil {
		t.Fatalf("pg_basebackup: %v: %s", err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port = l.Addr().(*net.TCPAddr).Port
	l.Close()
	server := as("postgres", "-D", data, "-p", strconv.Itoa(port), "-k", dir)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Process.Signal(syscall.SIGINT)
		server.Wait()
	})
	eventually(t, "the standby", func() bool {
		c, err := pgconn.Connect(t.Context(), fmt.Sprintf("host=%s port=%d user=postgres dbname=orders", dir, port))
		if err != nil {
			return false
		}
		defer c.Close(t.Context())
		return c.ParameterStatus("in_hot_standby") == "on"
	})
	return port, dir
}

// Proves that a standby which is promoted while its connections are pooled is not
// told as one: functions read in_hot_standby = off, and a route that wants a
// standby takes another server.
func TestPromotedStandbyIsToldTruly(t *testing.T) {
	testpg.Require(t, "pg_basebackup", "postgresql-client")
	pg := testpg.Start(t)
	port, socket := standby(t, pg)
	d := newDaemon(t)
	route := func(name, attrs string) string {
		return fmt.Sprintf(`  %s:
    servers: ["127.0.0.1:%d", "127.0.0.1:%d"]
    target_session_attrs: %s
    database: orders
    user: %q
    password: {file: %q}
    tls: {identity: app}
    pool: {min_idle: 3, max: 5}
    allow: [any: true]
`, name, port, pg.Port, attrs, pg.Role, d.dir+"/password")
	}
	d.configure(pg, settings{Route: route("any", "any") + route("standby", "prefer-standby")})
	d.start("serve", "--config", d.config)
	d.awaitWarm()
	told := func(database string) string {
		t.Helper()
		c, err := pgconn.Connect(t.Context(), fmt.Sprintf("host=%s user=app dbname=%s", d.runDir, database))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(t.Context())
		return c.ParameterStatus("in_hot_standby")
	}
	for _, name := range []string{"any", "standby"} {
		if got := told(name); got != "on" {
			t.Errorf("%s: in_hot_standby is %q before", name, got)
		}
	}
	promote := fmt.Sprintf("host=%s port=%d user=postgres dbname=orders", socket, port)
	c, err := pgconn.Connect(t.Context(), promote)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	if _, err := c.Exec(t.Context(), "select pg_promote()").ReadAll(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"any", "standby"} {
		// Every upstream is asked, or replaced because of one that was; one that was
		// being made in that moment takes two seconds more.
		eventually(t, "the news", func() bool {
			for range 10 {
				if told(name) != "off" {
					return false
				}
			}
			return true
		})
	}
	d.awaitWarm()
	d.awaitEvent("a change", func(e audit.Event) bool {
		return e.Event == audit.UpstreamClosed && e.Outcome == "its server has changed"
	})
}
