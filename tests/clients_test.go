package tests

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"pghandoff/handoff"
	"pghandoff/handoff/pgxhandoff"
	"pghandoff/tests/testpg"
)

// clientFile is an example of docs/clients.
func clientFile(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "docs", "clients", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// output runs a program and returns what it prints.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PGHOST=", "PGUSER=", "PGDATABASE=")
	var warnings strings.Builder
	cmd.Stderr = &warnings
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s%s", name, args, err, out, warnings.String())
	}
	return strings.TrimSpace(string(out))
}

// Proves that the examples in Python run as they stand, against a real daemon: by the handoff socket, and on a
// descriptor from "pghandoff exec".
func TestPythonExamples(t *testing.T) {
	python := testpg.Require(t, "python3", "python3")
	d := serve(t, testpg.Shared(t), settings{})
	socket := filepath.Join(d.runDir, handoff.SocketName)
	const sql, want = "select current_user, null, 'é', 6*7", "app|None|é|42"
	if got := output(t, python, clientFile(t, "fn_stdlib.py"), socket, "orders", sql); got != want {
		t.Errorf("fn_stdlib.py printed %q", got)
	}
	if got := output(t, program(t), "exec", "--run-dir", d.runDir, "-d", "orders", "-U", "app", "--state", "ready", "--", python,
		clientFile(t, "fn_exec.py"), sql); got != want {
		t.Errorf("fn_exec.py printed %q", got)
	}
}

// pythonWith returns an interpreter that has the module, or "". Debian's modules belong to Debian's interpreter.
func pythonWith(t *testing.T, module string) string {
	t.Helper()
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		if exec.CommandContext(t.Context(), python, "-c", "import "+module).Run() == nil {
			return python
		}
	}
	return ""
}

// Proves that drivers for Python connect as docs/clients/python.md says: psycopg by the wire socket, pg8000 on a socket
// that it is given.
func TestPythonDrivers(t *testing.T) {
	d := serve(t, testpg.Shared(t), settings{})
	t.Run("psycopg", func(t *testing.T) {
		python := pythonWith(t, "psycopg")
		if python == "" {
			testpg.Missing(t, "Python module psycopg is missing (Debian: apt install python3-psycopg)")
		}
		script := `import sys, psycopg
with psycopg.connect(host=sys.argv[1], dbname="orders", user="app") as conn:
    print(*conn.execute("select current_user, %s::int", (42,)).fetchone(), sep="|")`
		if got := output(t, python, "-c", script, d.runDir); got != "app|42" {
			t.Errorf("psycopg printed %q", got)
		}
	})
	t.Run("pg8000", func(t *testing.T) {
		python := pythonWith(t, "pg8000.dbapi") // the one of Debian 12 is too old to have it
		if python == "" {
			t.Skip("Python module pg8000 is missing, or older than 1.16 (pip install pg8000)")
		}
		script := `import sys, pg8000.dbapi
sys.path.insert(0, sys.argv[1])
from fn_stdlib import acquire
sock, _ = acquire(sys.argv[2], database="orders", user="app", state="startup")
cursor = pg8000.dbapi.connect(user="app", database="orders", sock=sock).cursor()
cursor.execute("select current_user, 6*7")
print(*cursor.fetchone(), sep="|")`
		if got := output(t, python, "-c", script, filepath.Dir(clientFile(t, "x")), filepath.Join(d.runDir, handoff.SocketName)); got != "app|42" {
			t.Errorf("pg8000 printed %q", got)
		}
	})
}

// Proves that pgx works on a descriptor at ReadyForQuery, with parameters in effect, and that cancelling by context ends
// the query on the server.
func TestPgxByHandoff(t *testing.T) {
	d := serve(t, testpg.Shared(t), settings{})
	request := handoff.Request{Socket: filepath.Join(d.runDir, handoff.SocketName), Database: "orders", User: "app",
		Parameters: map[string]string{"TimeZone": "Asia/Tokyo"}}
	conn, err := pgxhandoff.Connect(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if got := query(t, conn, "current_setting('TimeZone') || $1::int", 42); got != "Asia/Tokyo42" {
		t.Errorf("got %s", got)
	}
	if conn.PgConn().ParameterStatus("TimeZone") != "Asia/Tokyo" {
		t.Errorf("told TimeZone %s", conn.PgConn().ParameterStatus("TimeZone"))
	}
	wantCancelled(t, func(ctx context.Context) error {
		_, err := conn.Exec(ctx, "select pg_sleep(60)")
		return err
	}, conn.PgConn().CancelRequest)
}

// Proves that a pool on handed-over descriptors can cancel while all of its connections, and all of the route's, are
// taken.
func TestPgxPoolCancelsOnAFullRoute(t *testing.T) {
	d := serve(t, testpg.Shared(t), settings{Pool: "min_idle: 1, max: 1, wait_timeout: 1s"})
	config, err := pgxpool.ParseConfig("dbname=orders user=app sslmode=disable pool_max_conns=1")
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.DialFunc = pgxhandoff.DialFunc(handoff.Request{Socket: filepath.Join(d.runDir, handoff.SocketName),
		Database: "orders", User: "app"})
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	wantCancelled(t, func(ctx context.Context) error {
		_, err := conn.Exec(ctx, "select pg_sleep(60)")
		return err
	}, conn.Conn().PgConn().CancelRequest)
}

// Proves that a lease's own Cancel reaches the server, by the secret and a connection of its own.
func TestLeaseCancels(t *testing.T) {
	d := serve(t, testpg.Shared(t), settings{})
	lease, err := handoff.Acquire(t.Context(), handoff.Request{Socket: filepath.Join(d.runDir, handoff.SocketName), Database: "orders",
		User: "app", State: handoff.Ready})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Close()
	sleep := append([]byte{'Q', 0, 0, 0, 24}, "select pg_sleep(60)\x00"...)
	wantCancelled(t, func(context.Context) error {
		if _, err := lease.Conn().Write(sleep); err != nil {
			return err
		}
		answer := make([]byte, 4<<10)
		for {
			n, err := lease.Conn().Read(answer)
			if err != nil {
				return err
			}
			if strings.Contains(string(answer[:n]), "C57014\x00") {
				return &pgconn.PgError{Code: "57014"}
			}
		}
	}, lease.Cancel)
}

// wantCancelled runs a query and cancels it until it has ended with 57014: a cancel that is there before the query has
// no effect.
func wantCancelled(t *testing.T, run, cancel func(context.Context) error) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- run(context.WithoutCancel(t.Context())) }() // ends with the cancel
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		select {
		case err := <-ended:
			var e *pgconn.PgError
			if !errors.As(err, &e) || e.Code != "57014" {
				t.Errorf("the query ended with %v", err)
			}
			return
		case <-again.C:
			if err := cancel(t.Context()); err != nil {
				t.Fatal(err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the query was not cancelled within 20 s")
		}
	}
}
