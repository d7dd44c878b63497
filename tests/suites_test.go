package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/tests/testpg"
)

// suitesEnv, set to 1, lets the drivers' own tests run. They take minutes.
const suitesEnv = "PGHANDOFF_TEST_SUITES"

// suite is a driver's own tests, as they come with its module.
type suite struct {
	name    string
	module  string
	env     func(host string, port int) []string
	differs map[string]string // tests that need not pass through a pooler, and why
}

var driverSuites = []suite{
	{
		name:   "pgx",
		module: "github.com/jackc/pgx/v5",
		env: func(host string, port int) []string {
			return []string{fmt.Sprintf("PGX_TEST_DATABASE=host=%s port=%d user=app database=orders", host, port)}
		},
		differs: map[string]string{
			"TestConnReleaseClosesConnInTransaction":       "it wants another backend behind a new connection; a pool may give the old one, rolled back and reset",
			"TestConnReleaseClosesConnInFailedTransaction": "it wants another backend behind a new connection; a pool may give the old one, rolled back and reset",
			"TestConnectProtocolVersion32":                 "it takes the length of cancel keys from the server's version; pghandoff speaks 3.2, with its long keys, whatever the server speaks",
		},
	},
	{
		name:   "pq",
		module: "github.com/lib/pq",
		env: func(host string, port int) []string {
			return []string{"PGHOST=" + host, fmt.Sprintf("PGPORT=%d", port), "PGUSER=app", "PGDATABASE=orders", "PGSSLMODE=disable"}
		},
	},
}

// Proves that drivers' own tests, run against the wire socket, fail only where they
// fail against PostgreSQL too, but for those that no pooler can pass.
func TestDriversOwnTests(t *testing.T) {
	if os.Getenv(suitesEnv) != "1" {
		t.Skipf("the drivers' own tests take minutes: set %s=1 to run them", suitesEnv)
	}
	pg := testpg.Start(t, testpg.Setting("max_connections", "300"), testpg.Setting("wal_level", "logical"), testpg.Setting("max_prepared_transactions", "10"))
	prepared := "alter role app superuser; create extension hstore; create extension ltree; create domain uint64 as numeric(20,0)"
	if _, err := pg.Psql(t.Context(), prepared); err != nil {
		t.Fatal(err)
	}
	d := serve(t, pg, settings{Pool: "min_idle: 2, max: 100", Route: "    users: [app]"})
	for _, s := range driverSuites {
		t.Run(s.name, func(t *testing.T) { s.compare(t, pg, d) })
	}
}

// compare runs the suite by the wire socket, what fails there again, alone and in
// both ways, and tells of tests that fail each time here and not there.
func (s suite) compare(t *testing.T, pg *throwaway.Cluster, d *daemon) {
	dir := s.source(t)
	wire, direct := s.env(d.runDir, 5432), s.env(pg.SocketDir, pg.Port)
	first := runSuite(t, dir, wire, "")
	t.Logf("%d tests passed, %d were skipped, %d failed", first.count("pass"), first.count("skip"), first.count("fail"))
	if first.count("pass") < 100 {
		t.Fatalf("no more than that: %s", lastBytes(first.output, 4<<10))
	}
	failed := first.failed()
	for name := range s.differs {
		if first.of[name] == "" {
			t.Errorf("there is no test %s any more", name)
		}
	}
	for _, name := range failed {
		if s.differs[name] != "" {
			t.Logf("%s fails, as %s", name, s.differs[name])
			continue
		}
		again, there := runSuite(t, dir, wire, name), runSuite(t, dir, direct, name)
		if len(again.failed()) > 0 && len(there.failed()) == 0 {
			t.Errorf("%s fails through pghandoff, and not against PostgreSQL:\n%s", name, lastBytes(again.output, 4<<10))
		}
	}
}

// source copies the module to where its tests may write.
func (s suite) source(t *testing.T) string {
	t.Helper()
	from := strings.TrimSpace(output(t, "go", "list", "-m", "-f", "{{.Dir}}", s.module))
	to := filepath.Join(t.TempDir(), "module")
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	filepath.WalkDir(to, func(path string, _ os.DirEntry, err error) error { return os.Chmod(path, 0o755) })
	return to
}

// results are what became of each test, by its top-level name.
type results struct {
	of     map[string]string
	output string
}

// runSuite runs the tests of a module; only, if it is not empty, is one that is run
// five times.
func runSuite(t *testing.T, dir string, env []string, only string) results {
	t.Helper()
	args := []string{"test", "-p", "1", "-json", "-count=1"}
	if only != "" {
		args = append(args, "-count=5", "-run", "^"+regexp.QuoteMeta(only)+"$")
	}
	cmd := exec.CommandContext(t.Context(), "go", append(args, "./...")...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), append(env, "GOFLAGS=-mod=mod")...)
	text, err := cmd.Output() // it fails if a test does
	if len(text) == 0 {
		t.Fatalf("go test: %v", err)
	}
	r := results{of: map[string]string{}}
	var said strings.Builder
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var e struct{ Action, Test, Output string }
		if err := d.Decode(&e); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("go test: %v: %s", err, lastBytes(string(text), 1<<10))
		}
		said.WriteString(e.Output)
		name, _, sub := strings.Cut(e.Test, "/")
		ends := e.Action == "pass" || e.Action == "fail" || e.Action == "skip"
		if name != "" && !sub && ends && (only == "" || r.of[name] != "pass") { // of five runs one that passes is enough
			r.of[name] = e.Action
		}
	}
	r.output = said.String()
	return r
}

func (r results) count(outcome string) (n int) {
	for _, o := range r.of {
		if o == outcome {
			n++
		}
	}
	return n
}

func (r results) failed() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(r.of)) {
		if r.of[name] == "fail" {
			names = append(names, name)
		}
	}
	return names
}
