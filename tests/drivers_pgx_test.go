package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pghandoff/handoff"
	"pghandoff/handoff/pgxhandoff"
)

// pgxSource opens a connection with a changed configuration, and says how to give it back.
type pgxSource func(ctx context.Context, changes ...func(*pgx.ConnConfig)) (*pgx.Conn, func(), error)

// pgxChecks are those of pgx: by connection string, or on leases that pgxhandoff acquires.
func pgxChecks(t *testing.T, at target) goChecks {
	var source pgxSource = func(ctx context.Context, changes ...func(*pgx.ConnConfig)) (conn *pgx.Conn, release func(), err error) {
		if conn, err = pgxOpen(ctx, at, changes); err != nil {
			return nil, nil, err
		}
		return conn, func() { conn.Close(context.WithoutCancel(ctx)) }, nil
	}
	all := pgxCommon(source)
	all["connect"] = func(ctx context.Context) error {
		conn, err := pgxConnect(ctx, at.way, at.runDir, at.route)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		return pgxIsApp(ctx, conn)
	}
	all["reconnect"] = func(ctx context.Context) error {
		return source.with(ctx, func(old *pgx.Conn) error {
			if err := errors.Join(pgxIsApp(ctx, old), at.restart()); err != nil {
				return err
			}
			if pgxIsApp(ctx, old) == nil || !old.IsClosed() {
				return errors.New("the old connection is alive")
			}
			return source.with(ctx, func(fresh *pgx.Conn) error { return pgxIsApp(ctx, fresh) })
		})
	}
	return goChecks{module: "github.com/jackc/pgx/v5", checks: all}
}

// pgxConnect is the shortest way to a connection.
func pgxConnect(ctx context.Context, way, runDir, route string) (*pgx.Conn, error) {
	if way == handed {
		return pgxhandoff.Connect(ctx, handoff.Request{Socket: runDir + "/handoff.sock", Database: route, User: "app"})
	}
	return pgx.Connect(ctx, "host="+runDir+" dbname="+route+" user=app")
}

func pgxOpen(ctx context.Context, at target, changes []func(*pgx.ConnConfig)) (*pgx.Conn, error) {
	if at.way == handed {
		return pgxhandoff.Connect(ctx, handoff.Request{Socket: at.runDir + "/handoff.sock", Database: at.route, User: "app"}, changes...)
	}
	config, err := pgx.ParseConfig("host=" + at.runDir + " dbname=" + at.route + " user=app")
	if err != nil {
		return nil, err
	}
	for _, change := range changes {
		change(config)
	}
	return pgx.ConnectConfig(ctx, config)
}

// with runs an action on a connection of its own.
func (s pgxSource) with(ctx context.Context, action func(*pgx.Conn) error, changes ...func(*pgx.ConnConfig)) error {
	conn, release, err := s(ctx, changes...)
	if err != nil {
		return err
	}
	defer release()
	return action(conn)
}

// pgxValue reads one value as text and compares it.
func pgxValue(ctx context.Context, c *pgx.Conn, want, sql string, args ...any) error {
	var got string
	if err := c.QueryRow(ctx, sql, args...).Scan(&got); err != nil {
		return err
	}
	return same(got, want)
}

func pgxIsApp(ctx context.Context, c *pgx.Conn) error {
	return pgxValue(ctx, c, "app", "select current_user::text")
}

// pgxCommon are the checks on connections of any source.
func pgxCommon(source pgxSource) map[string]func(context.Context) error {
	on := func(check func(context.Context, *pgx.Conn) error, changes ...func(*pgx.ConnConfig)) func(context.Context) error {
		return func(ctx context.Context) error {
			return source.with(ctx, func(c *pgx.Conn) error { return check(ctx, c) }, changes...)
		}
	}
	return map[string]func(context.Context) error{
		"settings": on(pgxSettings, func(c *pgx.ConnConfig) {
			c.RuntimeParams = map[string]string{"application_name": "checks", "TimeZone": "Asia/Tokyo", "options": "-c work_mem=5MB"}
		}),
		"parameters": on(pgxParameters),
		"prepared":   on(pgxPrepared),
		"copy":       on(pgxCopy),
		"notify":     func(ctx context.Context) error { return pgxNotify(ctx, source) },
		"cancel":     func(ctx context.Context) error { return pgxCancel(ctx, source) },
		"errors":     func(ctx context.Context) error { return pgxErrors(ctx, source) },
		"large":      on(pgxLarge),
	}
}

func pgxSettings(ctx context.Context, c *pgx.Conn) error {
	return each(
		func() error { return pgxValue(ctx, c, "checks", "show application_name") },
		func() error { return pgxValue(ctx, c, "Asia/Tokyo", "show TimeZone") },
		func() error { return pgxValue(ctx, c, "5MB", "show work_mem") },
		func() error { return same(c.PgConn().ParameterStatus("TimeZone"), "Asia/Tokyo") },
	)
}

func pgxParameters(ctx context.Context, c *pgx.Conn) error {
	const sql = "select $1::int, $2::text, $3::text, $4::timestamptz, $5::bytea, $6::int[]"
	values := []any{int32(42), driverText, nil, time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), []byte{0, 1, 255}, []int32{1, 2, 3}}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		var (
			number  int32
			text    string
			null    *string
			when    time.Time
			data    []byte
			numbers []int32
		)
		args := append([]any{mode}, values...)
		if err := c.QueryRow(ctx, sql, args...).Scan(&number, &text, &null, &when, &data, &numbers); err != nil {
			return fmt.Errorf("%s: %w", mode, err)
		}
		if null != nil {
			return fmt.Errorf("%s: null became %q", mode, *null)
		}
		if err := same([]any{number, text, nil, when.UTC(), data, numbers}, values); err != nil {
			return fmt.Errorf("%s: %w", mode, err)
		}
	}
	return nil
}

func pgxPrepared(ctx context.Context, c *pgx.Conn) error {
	if _, err := c.Prepare(ctx, "plus_one", "select ($1::int + 1)::text"); err != nil {
		return err
	}
	defer c.Deallocate(ctx, "plus_one")
	for i := range 100 {
		if err := pgxValue(ctx, c, fmt.Sprint(i+1), "plus_one", i); err != nil {
			return err
		}
	}
	return pgxValue(ctx, c, "1", "select count(*)::text from pg_prepared_statements where name = 'plus_one'")
}

func pgxCopy(ctx context.Context, c *pgx.Conn) error {
	var lines, out bytes.Buffer
	for i := range 1000 {
		fmt.Fprintf(&lines, "%d\tline %d\n", i, i)
	}
	if _, err := c.Exec(ctx, "create temp table copied (a int, b text)"); err != nil {
		return err
	}
	defer c.Exec(ctx, "drop table copied")
	if _, err := c.PgConn().CopyFrom(ctx, bytes.NewReader(lines.Bytes()), "copy copied from stdin"); err != nil {
		return err
	}
	if _, err := c.PgConn().CopyTo(ctx, &out, "copy copied to stdout"); err != nil {
		return err
	}
	return same(out.String(), lines.String())
}

func pgxNotify(ctx context.Context, source pgxSource) error {
	return source.with(ctx, func(listener *pgx.Conn) error {
		return source.with(ctx, func(sender *pgx.Conn) error {
			if _, err := listener.Exec(ctx, "listen checks_pgx"); err != nil {
				return err
			}
			defer listener.Exec(ctx, "unlisten *")
			if _, err := sender.Exec(ctx, "select pg_notify('checks_pgx', $1)", driverText); err != nil {
				return err
			}
			notice, err := listener.WaitForNotification(ctx)
			if err != nil {
				return err
			}
			return same(*notice, pgconn.Notification{PID: sender.PgConn().PID(), Channel: "checks_pgx", Payload: driverText})
		})
	})
}

func pgxCancel(ctx context.Context, source pgxSource) error {
	return source.with(ctx, func(c *pgx.Conn) error {
		return source.with(ctx, func(watcher *pgx.Conn) error {
			ended := make(chan error, 1)
			go func() { // ends with the cancel or with ctx
				_, err := c.Exec(ctx, "select pg_sleep(60)")
				ended <- err
			}()
			err := poll(ctx, func() (sleeps bool, err error) {
				var n int
				err = watcher.QueryRow(ctx, driverSleeps, c.PgConn().PID()).Scan(&n)
				return n > 0, err
			})
			if err = errors.Join(err, c.PgConn().CancelRequest(ctx)); err != nil {
				return err
			}
			if err := wantState(<-ended, "57014"); err != nil {
				return err
			}
			return pgxIsApp(ctx, c)
		})
	})
}

// wantState demands a pgconn.PgError with the SQLSTATE.
func wantState(err error, state string) error {
	var e *pgconn.PgError
	if !errors.As(err, &e) || e.Code != state {
		return fmt.Errorf("want %s, got: %v", state, err)
	}
	return nil
}

func pgxErrors(ctx context.Context, source pgxSource) error {
	err := source.with(ctx, func(c *pgx.Conn) error {
		if _, err := c.Exec(ctx, "create temp table once (a int constraint only_once unique)"); err != nil {
			return err
		}
		defer c.Exec(ctx, "drop table once")
		if _, err := c.Exec(ctx, "insert into once values (1)"); err != nil {
			return err
		}
		_, err := c.Exec(ctx, "insert into once values ($1)", 1)
		var e *pgconn.PgError
		if errors.As(err, &e) && e.ConstraintName != "only_once" {
			return fmt.Errorf("the constraint is called %q", e.ConstraintName)
		}
		return wantState(err, "23505")
	})
	if err != nil {
		return err
	}
	_, _, err = source(ctx, func(c *pgx.ConnConfig) { c.Database = "nosuch" })
	return wantState(err, "3D000")
}

func pgxLarge(ctx context.Context, c *pgx.Conn) error {
	rows, err := c.Query(ctx, driverLarge)
	if err != nil {
		return err
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	return same(strings.Join(all, ""), strings.Repeat("x", 10_000_000))
}
