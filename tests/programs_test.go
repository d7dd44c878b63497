package tests

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/tests/testpg"
)

// residue says what a session has that a fresh one has not.
const residue = `select concat_ws('|', (select count(*) from pg_locks where locktype = 'advisory'), (select count(*) from pg_cursors where name <> ''),
	(select count(*) from pg_listening_channels()), (select count(*) from pg_prepared_statements where not from_sql or name not like 'stmtcache%'),
	(select count(*) from pg_class where relpersistence = 't' and pg_table_is_visible(oid)), current_setting('search_path'), current_setting('work_mem'),
	current_setting('client_min_messages'), (select count(*) from pg_stat_activity where pid = pg_backend_pid() and xact_start < now()))`

// Proves that psql shows the same through the wire socket as directly, with COPY,
// large objects, cursors WITH HOLD, advisory locks, temporary tables, LISTEN,
// notices and errors, and that nothing of it is there for the next function.
func TestPsqlShowsTheSame(t *testing.T) {
	psql := testpg.Require(t, "psql", "postgresql-client")
	pg := testpg.Start(t)
	d := serve(t, pg, settings{Pool: "min_idle: 1, max: 1"})
	fresh := d.connect()
	pristine, pid := query(t, fresh, residue), fresh.PgConn().PID()
	fresh.Close(t.Context())
	var said []string
	for _, to := range []string{pg.URL(), "host=" + d.runDir + " user=app dbname=orders"} {
		out, err := shell(t, nil, psql, "-X", "-f", "testdata/programs/session.sql", to)
		if err != nil {
			t.Fatalf("psql: %v: %s", err, out)
		}
		said = append(said, unlike.ReplaceAllString(out, "…"))
	}
	if said[0] != said[1] {
		t.Errorf("psql says, directly:\n%s\nand through pghandoff:\n%s", said[0], said[1])
	}
	for _, sign := range []string{"COPY 1000", "23505", "57014|22012", "noted", `Asynchronous notification "news" with payload "two"`, "34000"} {
		if !regexp.MustCompile(sign).MatchString(said[0]) {
			t.Errorf("it does not say %q: %s", sign, said[0])
		}
	}
	next := d.connect()
	if got := query(t, next, residue); got != pristine {
		t.Errorf("the next function finds %s, a fresh session has %s", got, pristine)
	}
	if next.PgConn().PID() != pid {
		t.Error("it has another backend: the reset was not needed")
	}
}

// unlike matches what differs from session to session: OIDs and backends.
var unlike = regexp.MustCompile(`lo_import \d+|PID \d+|pg_temp_\d+`)

// Proves that pgbench, in every protocol mode and with pipelines, leaves the same
// in the database as directly.
func TestPgbenchLeavesTheSame(t *testing.T) {
	pgbench := testpg.Require(t, "pgbench", "postgresql-contrib")
	pg := testpg.Start(t)
	d := serve(t, pg, settings{Pool: "min_idle: 1, max: 4"})
	run := func(to string, args ...string) string {
		t.Helper()
		mustPsql(t, pg, `drop table if exists accounts, history; create table accounts (id int primary key, balance int); insert into accounts select i, 0 from generate_series(1, 1000) i;
			create table history (id serial, aid int, delta int, balance int); grant all on accounts, history, history_id_seq to app`)
		out, err := shell(t, nil, pgbench, append(args, "-n", "--random-seed=7", "-t", "300", "-f", "testdata/programs/bench.sql", to)...)
		if err != nil || !strings.Contains(out, "number of failed transactions: 0 ") {
			t.Fatalf("pgbench %v: %v: %s", args, err, out)
		}
		return mustPsql(t, pg, "select md5((select string_agg(id || ',' || balance, ';' order by id) from accounts) || (select string_agg(id || ',' || aid || ',' || delta || ',' || balance, ';' order by id) from history))")
	}
	wire := "host=" + d.runDir + " user=app dbname=orders"
	for _, mode := range []string{"simple", "extended", "prepared"} {
		if want, got := run(pg.URL(), "-M", mode), run(wire, "-M", mode); got != want {
			t.Errorf("%s: checksum %s, directly %s", mode, got, want)
		}
	}
	mustPsql(t, pg, "update accounts set balance = 0")
	for _, mode := range []string{"extended", "prepared"} {
		out, err := shell(t, nil, pgbench, "-n", "-c", "4", "-t", "200", "-M", mode, "-f", "testdata/programs/pipeline.sql", wire)
		if err != nil || !strings.Contains(out, "number of transactions actually processed: 800/800") {
			t.Errorf("pipelines, %s: %v: %s", mode, err, out)
		}
	}
	if n := mustPsql(t, pg, "select sum(balance) from accounts"); n != "1600" {
		t.Errorf("the pipelines have added %s, not 1600", n)
	}
}

func mustPsql(t *testing.T, pg *throwaway.Cluster, sql string) string {
	t.Helper()
	out, err := pg.Psql(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Proves that a function which LISTENs is told when the server restarts, and gets
// its notifications again on a new lease; the one after it does not.
func TestListenAcrossARestart(t *testing.T) {
	pg := testpg.Start(t)
	d := serve(t, pg, settings{Pool: "min_idle: 1, max: 1"})
	c := d.connect()
	execSQL(t, c, "listen news")
	hears := func(what string) {
		t.Helper()
		mustPsql(t, pg, fmt.Sprintf("notify news, '%s'", what))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if n, err := c.WaitForNotification(ctx); err != nil || n.Payload != what {
			t.Fatalf("heard %+v, %v", n, err)
		}
	}
	hears("before")
	if err := pg.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := c.WaitForNotification(ctx); sqlState(err) != "57P01" {
		t.Errorf("told %v", err)
	}
	eventually(t, "a new lease", func() (ok bool) {
		var err error
		c, err = d.tryConnect()
		return err == nil
	})
	execSQL(t, c, "listen news")
	hears("after")
	c.Close(t.Context())
	next := d.connect()
	mustPsql(t, pg, "notify news, 'not for you'")
	if n, err := oneNotification(t, next); n != nil {
		t.Errorf("the next function heard %+v, %v", n, err)
	}
}

// oneNotification asks something, so that what the server has to say is there, and
// looks for a notification.
func oneNotification(t *testing.T, c *pgx.Conn) (*pgconn.Notification, error) {
	t.Helper()
	query(t, c, "select 1")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	n, err := c.WaitForNotification(ctx)
	return n, err
}
