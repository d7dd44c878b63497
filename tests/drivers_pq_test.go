package tests

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"

	"pghandoff/handoff"
)

// leases dials for lib/pq by acquiring leases, on which the driver does its own start-up.
type leases struct{ request handoff.Request }

func (l leases) Dial(_, _ string) (net.Conn, error) {
	return l.DialContext(context.Background(), "", "")
}

func (l leases) DialTimeout(_, _ string, limit time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return l.DialContext(ctx, "", "")
}

func (l leases) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	lease, err := handoff.Acquire(ctx, l.request)
	if err != nil {
		return nil, err
	}
	return lease.Conn(), nil // closing it ends the lease
}

// pqChecks are those of lib/pq by database/sql.
func pqChecks(t *testing.T, at target) goChecks {
	p := pqDriver{at}
	db, err := pqOpen(at.way, at.runDir, at.route)
	if err != nil {
		t.Fatal(err)
	}
	return goChecks{module: "github.com/lib/pq", close: func() { db.Close() }, checks: map[string]func(context.Context) error{
		"connect":    func(ctx context.Context) error { return pqValue(ctx, db, "app", "select current_user") },
		"settings":   p.settings,
		"parameters": func(ctx context.Context) error { return pqParameters(ctx, db) },
		"prepared":   func(ctx context.Context) error { return pqPrepared(ctx, db) },
		"copy":       func(ctx context.Context) error { return pqCopy(ctx, db) },
		"notify":     func(ctx context.Context) error { return p.notify(ctx, db) },
		"cancel":     func(ctx context.Context) error { return pqCancel(ctx, db) },
		"errors":     p.errors,
		"large":      func(ctx context.Context) error { return pqLarge(ctx, db) },
		"reconnect":  func(ctx context.Context) error { return p.reconnect(ctx, db) },
	}}
}

// pqOpen is the shortest way to a database.
func pqOpen(way, runDir, route string) (*sql.DB, error) {
	if way != handed {
		return sql.Open("postgres", "host="+runDir+" dbname="+route+" user=app sslmode=disable")
	}
	return pqHanded(runDir, route, "host="+runDir+" dbname="+route+" user=app sslmode=disable")
}

func pqHanded(runDir, route, dsn string) (*sql.DB, error) {
	connector, err := pq.NewConnector(dsn)
	if err != nil {
		return nil, err
	}
	connector.Dialer(leases{handoff.Request{Socket: runDir + "/handoff.sock", Database: route, User: "app"}})
	return sql.OpenDB(connector), nil
}

type pqDriver struct{ at target }

// with runs an action on a database of its own.
func (p pqDriver) with(database, more string, action func(*sql.DB) error) error {
	dsn := "host=" + p.at.runDir + " dbname=" + database + " user=app sslmode=disable " + more
	db, err := sql.Open("postgres", dsn)
	if p.at.way == handed {
		db, err = pqHanded(p.at.runDir, p.at.route, dsn)
	}
	if err != nil {
		return err
	}
	defer db.Close()
	return action(db)
}

// pqRower is a sql.DB, sql.Conn, sql.Tx.
type pqRower interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// pqValue reads one value as text and compares it.
func pqValue(ctx context.Context, db pqRower, want, query string, args ...any) error {
	var got string
	if err := db.QueryRowContext(ctx, query, args...).Scan(&got); err != nil {
		return err
	}
	return same(got, want)
}

func (p pqDriver) settings(ctx context.Context) error {
	return p.with(p.at.route, "application_name=checks TimeZone=Asia/Tokyo options='-c work_mem=5MB'", func(db *sql.DB) error {
		return each(
			func() error { return pqValue(ctx, db, "checks", "show application_name") },
			func() error { return pqValue(ctx, db, "Asia/Tokyo", "show TimeZone") },
			func() error { return pqValue(ctx, db, "5MB", "show work_mem") },
		)
	})
}

func pqParameters(ctx context.Context, db *sql.DB) error {
	values := []any{int64(42), driverText, sql.NullString{}, time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), []byte{0, 1, 255}, pq.Int64Array{1, 2, 3}}
	var (
		number  int64
		text    string
		null    sql.NullString
		when    time.Time
		data    []byte
		numbers pq.Int64Array
	)
	row := db.QueryRowContext(ctx, "select $1::int, $2::text, $3::text, $4::timestamptz, $5::bytea, $6::int[]", values...)
	if err := row.Scan(&number, &text, &null, &when, &data, &numbers); err != nil {
		return err
	}
	return same([]any{number, text, null, when.UTC(), data, numbers}, values)
}

func pqPrepared(ctx context.Context, db *sql.DB) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	statement, err := conn.PrepareContext(ctx, "select $1::int + 1")
	if err != nil {
		return err
	}
	defer statement.Close()
	for i := range 100 {
		var got int
		if err := statement.QueryRowContext(ctx, i).Scan(&got); err != nil {
			return err
		}
		if got != i+1 {
			return fmt.Errorf("got %d, want %d", got, i+1)
		}
	}
	return pqValue(ctx, conn, "1", "select count(*) from pg_prepared_statements where statement like '%+ 1'")
}

func pqCopy(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, "create temp table copied (a int, b text)"); err != nil {
		return err
	}
	in, err := tx.PrepareContext(ctx, "copy copied (a, b) from stdin")
	if err != nil {
		return err
	}
	for i := range 1000 {
		if _, err := in.ExecContext(ctx, i, fmt.Sprintf("line %d", i)); err != nil {
			return err
		}
	}
	if _, err := in.ExecContext(ctx); err != nil {
		return err
	}
	if err := in.Close(); err != nil {
		return err
	}
	err = pqValue(ctx, tx, "1000 499500", "select count(*) || ' ' || sum(a) from copied where b = 'line ' || a")
	return cmp.Or(err, error(remark("COPY FROM only: it has no COPY TO")))
}

func (p pqDriver) notify(ctx context.Context, db *sql.DB) error {
	dsn := "host=" + p.at.runDir + " dbname=" + p.at.route + " user=app sslmode=disable"
	said := func(_ pq.ListenerEventType, _ error) {}
	listener := pq.NewListener(dsn, time.Second, time.Second, said)
	if p.at.way == handed {
		listener.Close()
		dialer := leases{handoff.Request{Socket: p.at.runDir + "/handoff.sock", Database: p.at.route, User: "app"}}
		listener = pq.NewDialListener(dialer, dsn, time.Second, time.Second, said)
	}
	defer listener.Close()
	if err := listener.Listen("checks_pq"); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, "select pg_notify('checks_pq', $1)", driverText); err != nil {
		return err
	}
	for {
		select {
		case notice := <-listener.Notify:
			if notice != nil { // nil: it has connected
				return same(notice.Extra, driverText)
			}
		case <-ctx.Done():
			return errors.New("no notification came")
		}
	}
}

func pqCancel(ctx context.Context, db *sql.DB) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	var pid int
	if err := conn.QueryRowContext(ctx, "select pg_backend_pid()").Scan(&pid); err != nil {
		return err
	}
	query, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { // ends with the cancel
		_, err := conn.ExecContext(query, "select pg_sleep(60)")
		ended <- err
	}()
	err = poll(ctx, func() (bool, error) {
		var n int
		err := db.QueryRowContext(ctx, driverSleeps, pid).Scan(&n)
		return n > 0, err
	})
	if err != nil {
		return err
	}
	cancel()
	if err := pqState(<-ended, "57014"); err != nil {
		return err
	}
	// The driver gives up a connection whose context ended; the server must be rid of the query all the same.
	return poll(ctx, func() (bool, error) {
		var n int
		err := db.QueryRowContext(ctx, driverSleeps, pid).Scan(&n)
		return n == 0, err
	})
}

// pqState demands the driver's error with the SQLSTATE.
func pqState(err error, state string) error {
	var e *pq.Error
	if !errors.As(err, &e) || string(e.Code) != state {
		return fmt.Errorf("want %s, got: %v", state, err)
	}
	return nil
}

func (p pqDriver) errors(ctx context.Context) error {
	err := p.with(p.at.route, "", func(db *sql.DB) error {
		db.SetMaxOpenConns(1)
		if _, err := db.ExecContext(ctx, "create temp table once (a int constraint only_once unique); insert into once values (1)"); err != nil {
			return err
		}
		_, err := db.ExecContext(ctx, "insert into once values ($1)", 1)
		var e *pq.Error
		if errors.As(err, &e) && e.Constraint != "only_once" {
			return fmt.Errorf("the constraint is called %q", e.Constraint)
		}
		return pqState(err, "23505")
	})
	if err != nil {
		return err
	}
	return p.with("nosuch", "", func(db *sql.DB) error { return pqState(db.PingContext(ctx), "3D000") })
}

func pqLarge(ctx context.Context, db *sql.DB) error {
	rows, err := db.QueryContext(ctx, driverLarge)
	if err != nil {
		return err
	}
	defer rows.Close()
	var all strings.Builder
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			return err
		}
		all.WriteString(line)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return same(all.String(), strings.Repeat("x", 10_000_000))
}

func (p pqDriver) reconnect(ctx context.Context, db *sql.DB) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := errors.Join(pqValue(ctx, conn, "1", "select 1"), p.at.restart()); err != nil {
		return err
	}
	if pqValue(ctx, conn, "1", "select 1") == nil {
		return errors.New("the old connection is alive")
	}
	return pqValue(ctx, db, "1", "select 1") // database/sql finds its idle connections ended, and opens another
}
