package tests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pghandoff/proxy/audit"
	"pghandoff/tests/testpg"
)

// Proves that a setting which only the start of a session can make is had, on an
// upstream of the function's own, and that no other function gets that.
func TestSettingsOfTheStartOfASession(t *testing.T) {
	pg := testpg.Start(t)
	d := serve(t, pg, settings{Pool: "min_idle: 1, max: 1"})
	c := d.connect()
	first := query(t, c, "select pg_backend_pid()::text")
	c.Close(t.Context())
	own := func(options ...string) {
		t.Helper()
		c := d.connect(append(options, "options='-c ignore_system_indexes=on'", "application_name=own")...)
		execSQL(t, c, "set application_name = other; reset all")
		if got := query(t, c, "select concat_ws('|', current_setting('ignore_system_indexes'), current_setting('application_name'))"); got != "on|own" {
			t.Errorf("got %s", got)
		}
		if got := query(t, c, "select pg_backend_pid()::text"); got == first {
			t.Errorf("it is backend %s, which started without them", got)
		}
		c.Close(t.Context())
	}
	own()
	c = d.connect()
	if got := query(t, c, "select current_setting('ignore_system_indexes')"); got != "off" {
		t.Errorf("the next function has ignore_system_indexes = %s", got)
	}
	c.Close(t.Context())
	for option, code := range map[string]string{"options='-c shared_buffers=1MB'": "55P02", "options='-c log_connections=on'": "42501", "options='-c ignore_system_indexes=perhaps'": "22023"} {
		if _, err := d.tryConnect(option); sqlState(err) != code {
			t.Errorf("%s: got %v, want %s", option, err, code)
		}
	}
	own()
	d.awaitEvent("its end", func(e audit.Event) bool {
		return e.Event == audit.UpstreamClosed && e.Outcome == "parameters of its own"
	})
}

// Proves that PostgreSQL's own programs for replication work through the wire
// socket: a base backup with the log streamed beside it, that is two replication
// connections at a time, and logical decoding.
func TestReplication(t *testing.T) {
	backup := testpg.Require(t, "pg_basebackup", "postgresql-client-15")
	logical := testpg.Require(t, "pg_recvlogical", "postgresql-client-15")
	pg := testpg.Start(t, testpg.Setting("wal_level", "logical"), testpg.Setting("max_wal_senders", "4"))
	if _, err := pg.Psql(t.Context(), "alter role "+pg.Role+" replication"); err != nil {
		t.Fatal(err)
	}
	d := serve(t, pg, settings{Pool: "min_idle: 1, max: 4"})
	env := append(os.Environ(), "PGHOST="+d.runDir, "PGUSER="+pg.Role)
	to := filepath.Join(t.TempDir(), "copy")
	if out, err := shell(t, env, backup, "-d", "dbname=orders", "-D", to, "-X", "stream", "--checkpoint=fast"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := os.Stat(filepath.Join(to, "backup_manifest")); err != nil {
		t.Error(err)
	}
	recv := []string{"-d", "orders", "--slot", "s"}
	if out, err := shell(t, env, logical, append(recv, "--create-slot", "-P", "test_decoding")...); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c := d.connect()
	execSQL(t, c, "create table replicated (a int); insert into replicated values (42)")
	end := query(t, c, "select pg_current_wal_insert_lsn()::text")
	out, err := shell(t, env, logical, append(recv, "--start", "--no-loop", "--endpos", end, "-f", "-")...)
	if err != nil || !strings.Contains(out, "table public.replicated: INSERT: a[integer]:42") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := shell(t, env, logical, append(recv, "--drop-slot")...); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if n := d.events(); len(n) == 0 {
		t.Error("no audit")
	}
	d.awaitWarm()
}
