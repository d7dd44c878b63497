package tests

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"pghandoff/pgwire"
	"pghandoff/proxy/admin"
	"pghandoff/proxy/audit"
	"pghandoff/tests/testpg"
)

// TestKilledFunction is not a test of its own: it is the function that the
// tests below kill. It does what FUNCTION says and then waits to be killed.
func TestKilledFunction(t *testing.T) {
	what := os.Getenv("PGHANDOFF_TEST_FUNCTION")
	if what == "" {
		t.Skip("only run as a child of TestSIGKILL…")
	}
	d := &daemon{t: t, runDir: os.Getenv("PGHANDOFF_TEST_RUN_DIR")}
	r := d.session()
	r.conn.SetDeadline(time.Time{})
	do := func(sql string) {
		r.send(message('Q', sql+"\x00"))
		r.until('Z')
	}
	switch what {
	case "transaction":
		do("set search_path to nowhere")
		do("begin")
		do("lock table kept in access exclusive mode")
		do("insert into kept values ('from the killed transaction')")
	case "copy":
		do("select pg_advisory_lock(42)")
		r.send(message('Q', "copy kept from stdin\x00"))
		r.until('G')
		r.send(message('d', "from the killed copy\n"))
	case "message":
		do("begin")
		do("set local work_mem to '1MB'")
		do("lock table kept in access exclusive mode")
		r.send(message('Q', "insert into kept values ('from the half-written message')\x00")[:20])
	case "query":
		do("begin")
		do("lock table kept in access exclusive mode")
		r.send(message('Q', "select pg_sleep(600)\x00"))
	}
	fmt.Println("READY")
	select {} // to be killed
}

// Proves that a function that is killed in the middle of something leaves
// nothing of it to the next one: no lock, no setting, no open transaction.
func TestSIGKILLOfAFunctionLeavesNothing(t *testing.T) {
	pg := testpg.Start(t)
	if _, err := pg.Psql(t.Context(), "create table kept (what text); alter table kept owner to app"); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"transaction", "copy", "message", "query"} {
		t.Run(what, func(t *testing.T) {
			// One upstream at most: whatever were left would meet the next.
			d := serve(t, pg, settings{Pool: "min_idle: 1, max: 1, wait_timeout: 10s"})
			killFunction(t, d, what)
			c := d.connect()
			if got := query(t, c, "select current_setting('search_path') || current_setting('work_mem')"); got != `"$user", public4MB` {
				t.Errorf("settings are %s", got)
			}
			execSQL(t, c, "set lock_timeout to '5s'")
			execSQL(t, c, "begin")
			execSQL(t, c, "lock table kept in access exclusive mode")
			execSQL(t, c, "commit")
			if got := query(t, c, "select pg_try_advisory_lock(42)"); got != "true" {
				t.Error("the advisory lock is still held")
			}
			if got := query(t, c, "select string_agg(what, ', ') from kept"); got != "" {
				t.Errorf("rows are there: %s", got)
			}
			held, err := pg.Psql(t.Context(), "select count(*) from pg_stat_activity where usename = 'app' and (state <> 'idle' or xact_start is not null)")
			if err != nil || held != "0" {
				t.Errorf("%s sessions are in a transaction, %v", held, err)
			}
		})
	}
}

func killFunction(t *testing.T, d *daemon, what string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestKilledFunction$", "-test.v")
	cmd.Env = append(os.Environ(), "PGHANDOFF_TEST_FUNCTION="+what, "PGHANDOFF_TEST_RUN_DIR="+d.runDir)
	out := new(lockedBuffer)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the function to be ready", func() bool { return strings.Contains(out.String(), "READY") }, out.String)
	cmd.Process.Kill()
	cmd.Wait()
}

// Proves that nothing that a function sets up in its session is there for the
// next, whatever it did, and that the backend itself is used again.
func TestSessionStateIsGoneForTheNextFunction(t *testing.T) {
	pg := testpg.Start(t)
	if _, err := pg.Psql(t.Context(), "create role other; grant other to app; create role homed login password 'x'; alter role app set statement_timeout to '77s'"); err != nil {
		t.Fatal(err)
	}
	d := serve(t, pg, settings{Pool: "min_idle: 1, max: 1"})
	for _, sql := range []string{
		"set work_mem to '1MB'", "set role other", "select pg_advisory_lock(1)", "create temporary table t (a int)", "prepare p as select 1",
		"listen c", "declare k cursor with hold for select 1", "set session characteristics as transaction read only", "set statement_timeout to 0",
		"select set_config('app.tenant', '7', false)", "set session authorization app", "select set_config('role', 'other', false)",
	} {
		t.Run(sql, func(t *testing.T) {
			a := d.connect()
			pid := query(t, a, "select pg_backend_pid()")
			execSQL(t, a, sql)
			a.Close(t.Context())
			b := d.connect()
			state := query(t, b, `select concat_ws(' ', current_setting('work_mem'), current_user, session_user, (select count(*) from pg_locks where locktype = 'advisory'),
				to_regclass('t'), (select count(*) from pg_prepared_statements where name = 'p'), (select count(*) from pg_listening_channels()),
				(select count(*) from pg_cursors where name = 'k'), current_setting('transaction_read_only'), current_setting('statement_timeout'), nullif(current_setting('app.tenant', true), ''))`)
			if state != "4MB app app 0 0 0 0 off 77s" {
				t.Errorf("the next function finds %q", state)
			}
			if got := query(t, b, "select pg_backend_pid()"); got != pid {
				t.Errorf("backend %s was thrown away although it was clean", pid)
			}
			b.Close(t.Context())
		})
	}
}

// Proves that a role which the server itself sets at login is there for every
// function, also after one that set another.
func TestRoleSetAtLoginComesBack(t *testing.T) {
	pg := testpg.Start(t)
	if _, err := pg.Psql(t.Context(), "create role home; create role other; grant home, other to app; alter role app set role to home"); err != nil {
		t.Fatal(err)
	}
	d := serve(t, pg, settings{Pool: "min_idle: 1, max: 1"})
	for i := range 3 {
		c := d.connect()
		if got := query(t, c, "select current_user"); got != "home" {
			t.Errorf("function %d is %s", i, got)
		}
		execSQL(t, c, "set role other")
		c.Close(t.Context())
	}
}

// Proves that reset: close gives every function a backend of its own.
func TestResetCloseUsesABackendOnce(t *testing.T) {
	pg := testpg.Start(t)
	d := serve(t, pg, settings{Pool: "min_idle: 1, max: 2, reset: close"})
	seen := map[string]bool{}
	for range 5 {
		c := d.connect()
		seen[query(t, c, "select pg_backend_pid()")] = true
		c.Close(t.Context())
	}
	if len(seen) != 5 {
		t.Errorf("%d backends for 5 functions", len(seen))
	}
}

// Proves that start-up parameters take effect, are reported as the server
// sees them, fail the start-up with its words, and are gone afterwards.
func TestStartupParameters(t *testing.T) {
	pg := testpg.Start(t)
	d := serve(t, pg, settings{Pool: "min_idle: 1, max: 1"})
	c := d.connect("application_name=resize timezone=Europe/Berlin", `options='-c work_mem=2MB --app.note=a\\ b'`)
	if got := query(t, c, "select concat_ws('|', current_setting('application_name'), current_setting('TimeZone'), current_setting('work_mem'), current_setting('app.note'))"); got != "resize|Europe/Berlin|2MB|a b" {
		t.Errorf("got %s", got)
	}
	if got := c.PgConn().ParameterStatus("TimeZone"); got != "Europe/Berlin" {
		t.Errorf("TimeZone is reported as %q", got)
	}
	c.Close(t.Context())
	for option, code := range map[string]string{"timezone=Nowhere/Land": "22023", "options='-c no_such_thing=1'": "42704", "role=postgres": "0A000", "replication=database": "42501", "options='-f x'": "0A000"} {
		if _, err := d.tryConnect(option); sqlState(err) != code {
			t.Errorf("%s: got %v, want %s", option, err, code)
		}
	}
	if got := query(t, d.connect(), "select current_setting('application_name') || current_setting('TimeZone')"); got != "UTC" && got != "Etc/UTC" {
		t.Errorf("the next function finds %q", got)
	}
}

// Proves that a cancel stops its own query, that one from another uid or with a
// wrong key does not, and that the function after it is not hit.
func TestCancel(t *testing.T) {
	pg := testpg.Start(t)
	d := serve(t, pg, settings{Pool: "min_idle: 1, max: 1"})
	for range 10 {
		r := d.session()
		r.send(message('Q', "select pg_sleep(60)\x00"))
		waitBusy(t, pg.Psql)
		wrong := append([]byte(nil), r.secret...)
		wrong[0] ^= 1
		d.cancel(r.pid, wrong)
		d.cancel(r.pid+1, r.secret)
		d.cancel(r.pid, r.secret)
		if e := r.failure(); e.Code != "57014" {
			t.Fatalf("got %v", e)
		}
		r.until('Z')
		go d.cancel(r.pid, r.secret) // a late one, on its way when the lease ends
		r.send(message('X', ""))
		r.conn.Close()
		c := d.connect()
		if got := query(t, c, "select 'whole' from pg_sleep(0.01)"); got != "whole" {
			t.Fatalf("got %q", got)
		}
		c.Close(t.Context())
	}
	forwarded := 0
	for _, e := range d.events() {
		if e.Event == audit.CancelForwarded {
			forwarded++
		}
	}
	if forwarded < 10 {
		t.Errorf("%d cancels in the audit", forwarded)
	}
}

func waitBusy(t *testing.T, psql func(context.Context, string) (string, error)) {
	t.Helper()
	eventually(t, "the query runs", func() bool {
		n, err := psql(t.Context(), "select count(*) from pg_stat_activity where usename = 'app' and wait_event = 'PgSleep'")
		return err == nil && n == "1"
	})
}

// cancel sends a cancel request and waits for the end of its connection.
func (d *daemon) cancel(pid uint32, secret []byte) {
	r := d.dialWire()
	r.conn.Write(pgwire.AppendCancelRequest(nil, pid, secret))
	var b [1]byte
	r.conn.Read(b[:])
	r.conn.Close()
}

// Proves that bytes which are not the protocol end that function's lease with
// 08P01 and leave everybody else alone.
func TestMalformedBytesEndOnlyTheirOwnLease(t *testing.T) {
	pg := testpg.Start(t)
	d := serve(t, pg, settings{Pool: "min_idle: 1, max: 2"})
	other := d.connect()
	for name, p := range map[string]string{"unknown type": "~~~~~~~~", "length 0": "Q\x00\x00\x00\x00", "HTTP": "GET / HTTP/1.1\r\n\r\n", "negative length": "Q\xff\xff\xff\xff"} {
		r := d.session()
		r.send([]byte(p))
		if e := r.failure(); e.Code != "08P01" {
			t.Errorf("%s: got %v", name, e)
		}
	}
	for name, p := range map[string]string{"HTTP": "GET / HTTP/1.1\r\n\r\n", "length 4": "\x00\x00\x00\x04", "length 2 GB": "\x7f\xff\xff\xff", "no terminator": "\x00\x00\x00\x0c\x00\x03\x00\x00user"} {
		r := d.dialWire()
		r.send([]byte(p))
		if e := r.failure(); e.Code != "08P01" {
			t.Errorf("start-up, %s: got %v", name, e)
		}
	}
	if got := query(t, other, "select 1"); got != "1" {
		t.Errorf("another function got %q", got)
	}
	d.await("the leases end", func(s *admin.Status) bool { return len(s.Leases) == 1 })
}

// Proves that the start-up is emulated as drivers need it.
func TestStartupEmulation(t *testing.T) {
	pg := testpg.Start(t)
	d := serve(t, pg, settings{})
	for _, request := range [][]byte{{0, 0, 0, 8, 4, 210, 22, 47}, {0, 0, 0, 8, 4, 210, 22, 48}} {
		r := d.dialWire()
		r.send(request)
		var answer [1]byte
		if _, err := r.conn.Read(answer[:]); err != nil || answer[0] != 'N' {
			t.Fatalf("an encryption request got %q, %v", answer, err)
		}
		for _, b := range startupMessage(pgwire.Version30, "user", "app", "database", "orders") {
			r.send([]byte{b}) // one byte at a time
		}
		r.until('Z')
	}
	r := d.dialWire()
	r.send(startupMessage(3<<16|9999, "user", "app", "database", "orders", "_pq_.grease", "1"))
	typ, body := r.next()
	if typ != 'v' || !strings.Contains(string(body), "_pq_.grease") {
		t.Errorf("protocol 3.9999 got %q %q", typ, body)
	}
	r.until('Z')
	for pairs, code := range map[string]string{"database=orders": "28000", "user=;database=orders": "28000", "user=app;database=nope": "3D000", "user=app": "3D000"} {
		var list []string
		for _, p := range strings.Split(pairs, ";") {
			name, value, _ := strings.Cut(p, "=")
			list = append(list, name, value)
		}
		r := d.dialWire()
		r.send(startupMessage(pgwire.Version30, list...))
		if e := r.failure(); e.Code != code {
			t.Errorf("%s: got %v, want %s", pairs, e, code)
		}
	}
	// Every ParameterStatus of the server is there, as it is directly.
	c := d.connect()
	for _, name := range []string{"server_version", "server_encoding", "client_encoding", "DateStyle", "TimeZone", "integer_datetimes", "standard_conforming_strings", "in_hot_standby", "is_superuser", "session_authorization", "IntervalStyle", "application_name", "default_transaction_read_only"} {
		if got, want := c.PgConn().ParameterStatus(name), query(t, c, fmt.Sprintf("select current_setting('%s')", name)); got != want {
			t.Errorf("%s is reported as %q and is %q", name, got, want)
		}
	}
	if got := query(t, c, "select pg_backend_pid()"); got != fmt.Sprint(c.PgConn().PID()) {
		t.Errorf("backend %s, reported %d", got, c.PgConn().PID())
	}
}
