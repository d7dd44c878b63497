package tests

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pghandoff/handoff"
	"pghandoff/handoff/pgxhandoff"
)

// pgxpoolChecks are those of pgx on the connections of a pool; a changed configuration gets a pool of its own.
func pgxpoolChecks(t *testing.T, at target) goChecks {
	pool, err := pgxpoolOpen(t.Context(), at.way, at.runDir, at.route)
	if err != nil {
		t.Fatal(err)
	}
	all := pgxCommon(func(ctx context.Context, changes ...func(*pgx.ConnConfig)) (*pgx.Conn, func(), error) {
		from, closeIt := pool, func() {}
		if len(changes) > 0 {
			own, err := pgxpoolOpen(ctx, at.way, at.runDir, at.route, changes...)
			if err != nil {
				return nil, nil, err
			}
			from, closeIt = own, own.Close
		}
		conn, err := from.Acquire(ctx)
		if err != nil {
			closeIt()
			return nil, nil, err
		}
		return conn.Conn(), func() { conn.Release(); closeIt() }, nil
	})
	all["connect"] = func(ctx context.Context) error { return pgxpoolIsApp(ctx, pool) }
	all["reconnect"] = func(ctx context.Context) error {
		if err := errors.Join(pgxpoolIsApp(ctx, pool), at.restart()); err != nil {
			return err
		}
		// A connection that was idle for less than a second is handed out unchecked: its query fails, and the pool
		// drops it.
		return poll(ctx, func() (bool, error) { return pgxpoolIsApp(ctx, pool) == nil, nil })
	}
	return goChecks{module: "github.com/jackc/pgx/v5", checks: all, close: pool.Close}
}

func pgxpoolOpen(ctx context.Context, way, runDir, route string, changes ...func(*pgx.ConnConfig)) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig("host=" + runDir + " dbname=" + route + " user=app")
	if err != nil {
		return nil, err
	}
	if way == handed {
		socket := runDir + "/handoff.sock"
		config.ConnConfig.DialFunc = pgxhandoff.DialFunc(handoff.Request{Socket: socket, Database: route, User: "app"})
	}
	for _, change := range changes {
		change(config.ConnConfig)
	}
	config.MaxConns = 3
	return pgxpool.NewWithConfig(ctx, config)
}

func pgxpoolIsApp(ctx context.Context, pool *pgxpool.Pool) error {
	var got string
	if err := pool.QueryRow(ctx, "select current_user::text").Scan(&got); err != nil {
		return err
	}
	return same(got, "app")
}
