package pgxhandoff_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/handoff"
	"pghandoff/handoff/handofftest"
	"pghandoff/handoff/pgxhandoff"
	"pghandoff/tests/testpg"
)

// realBroker grants connections to a real PostgreSQL that it has started up itself.
type realBroker struct{ cluster *throwaway.Cluster }

func (b realBroker) Acquire(ctx context.Context, _ handoff.Call) (*handofftest.Grant, error) {
	conn, err := pgconn.Connect(ctx, b.cluster.SuperuserDSN(""))
	if err != nil {
		return nil, err
	}
	h, err := conn.Hijack()
	if err != nil {
		return nil, err
	}
	defer func() { _ = h.Conn.Close() }()
	file, err := h.Conn.(*net.UnixConn).File()
	if err != nil {
		return nil, err
	}
	var parameters []handoff.Parameter
	for name, value := range h.ParameterStatuses {
		parameters = append(parameters, handoff.Parameter{Name: name, Value: value})
	}
	secret := handoff.Secret(binary.BigEndian.Uint32(h.SecretKey))
	return &handofftest.Grant{File: file, Granted: handoff.Granted{Lease: "l", Transport: handoff.Plain, State: handoff.Ready,
		Tx: h.TxStatus, PID: h.PID, Secret: &secret, Parameters: parameters}}, nil
}

func (realBroker) Cancel(context.Context, handoff.Claim) error  { return nil }
func (realBroker) Release(context.Context, handoff.Claim) error { return nil }

// Proves that what pgx does with a connection of its own, prepared statements, transactions, COPY and cancelling by
// context among it, works on one that was handed over at ReadyForQuery.
func TestPgxWorksOnARealServer(t *testing.T) {
	cluster := testpg.Start(t, testpg.Plain)
	socket := handofftest.Listen(t, realBroker{cluster})
	var once sync.Once
	cancelled := make(chan struct{})
	handofftest.Accept(t, handoff.WirePath(socket), func(conn *net.UnixConn) {
		defer func() { _ = conn.Close() }()
		server, err := net.Dial("unix", fmt.Sprintf("%s/.s.PGSQL.%d", cluster.SocketDir, cluster.Port))
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = server.Close() }()
		_, _ = io.CopyN(server, conn, 16)
		_, _ = io.Copy(io.Discard, server)
		once.Do(func() { close(cancelled) })
	})
	conn, err := pgxhandoff.Connect(t.Context(), handoff.Request{Socket: socket, Database: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	useConnection(t, conn)

	queryEnds := make(chan error, 1)
	go func() { // ends with the cancel
		_, err := conn.Exec(context.Background(), "select pg_sleep(60)")
		queryEnds <- err
	}()
	// A cancel that comes before the query has started is lost, so it is repeated until the query has ended.
	for {
		if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-cancelled
		select {
		case err := <-queryEnds:
			var e *pgconn.PgError
			if !errors.As(err, &e) || e.Code != "57014" {
				t.Errorf("a cancelled query ended with %v", err)
			}
			return
		default:
		}
	}
}

func useConnection(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	ctx := t.Context()
	var pid, sum int
	if err := conn.QueryRow(ctx, "select pg_backend_pid(), $1::int + 1", 41).Scan(&pid, &sum); err != nil || sum != 42 {
		t.Fatalf("got %d, %v", sum, err)
	}
	if uint32(pid) != conn.PgConn().PID() {
		t.Errorf("pid %d, told %d", pid, conn.PgConn().PID())
	}
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "create temporary table items (n int)"); err != nil {
			return err
		}
		_, err := tx.CopyFrom(ctx, pgx.Identifier{"items"}, []string{"n"}, pgx.CopyFromRows([][]any{{1}, {2}, {3}}))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.QueryRow(ctx, "select sum(n) from items").Scan(&sum); err != nil || sum != 6 {
		t.Errorf("got %d, %v", sum, err)
	}
}
