package pgxhandoff_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"pghandoff/handoff"
	"pghandoff/handoff/handofftest"
	"pghandoff/handoff/pgxhandoff"
)

// daemon is a tiny pghandoff: a handoff socket that grants descriptors to a scripted server, and a wire socket that
// only takes cancel requests.
type daemon struct {
	t       *testing.T
	socket  string
	cancels chan [2]uint32 // pid and secret
	calls   chan handoff.Call
	wg      sync.WaitGroup
}

func newDaemon(t *testing.T) *daemon {
	t.Helper()
	dir := t.TempDir()
	d := &daemon{t: t, socket: filepath.Join(dir, handoff.SocketName), cancels: make(chan [2]uint32, 10),
		calls: make(chan handoff.Call, 10)}
	t.Cleanup(d.wg.Wait) // runs last
	handofftest.Accept(t, d.socket, func(conn *net.UnixConn) { handofftest.Serve(t.Context(), conn, d) })
	handofftest.Accept(t, handoff.WirePath(d.socket), func(conn *net.UnixConn) {
		defer func() { _ = conn.Close() }()
		packet := make([]byte, 16)
		if _, err := io.ReadFull(conn, packet); err == nil {
			d.cancels <- [2]uint32{binary.BigEndian.Uint32(packet[8:]), binary.BigEndian.Uint32(packet[12:])}
		}
	})
	for _, name := range []string{"PGHOST", "PGPORT", "PGUSER", "PGSERVICE"} {
		t.Setenv(name, "")
	}
	return d
}

func (d *daemon) Acquire(ctx context.Context, c handoff.Call) (*handofftest.Grant, error) {
	d.calls <- c
	switch c.Database {
	case "full":
		return nil, &handoff.Refusal{SQLState: "53300", Message: "pool is full", Hint: "pool.max"}
	case "wait":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	near, far, err := handofftest.Pair()
	if err != nil {
		return nil, err
	}
	d.wg.Go(func() { script(far, c.State) })
	secret := handoff.Secret(4242)
	return &handofftest.Grant{File: near, Granted: handoff.Granted{Lease: "l", Transport: handoff.Bridge, State: c.State, Tx: 'I', PID: 77,
		Secret: &secret, Parameters: []handoff.Parameter{{Name: "server_version", Value: "17.2"},
			{Name: "standard_conforming_strings", Value: "on"}, {Name: "client_encoding", Value: "UTF8"}}}}, nil
}

func (d *daemon) Cancel(context.Context, handoff.Claim) error  { return nil }
func (d *daemon) Release(context.Context, handoff.Claim) error { return nil }

// script answers a start-up, if one is to come, and then each simple query with one row that holds the query.
func script(file *os.File, state handoff.State) {
	defer func() { _ = file.Close() }()
	backend := pgproto3.NewBackend(file, file)
	if state == handoff.Startup {
		if _, err := backend.ReceiveStartupMessage(); err != nil {
			return
		}
		backend.Send(&pgproto3.AuthenticationOk{})
		backend.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: "started"})
		backend.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
		backend.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
		backend.Send(&pgproto3.BackendKeyData{ProcessID: 77, SecretKey: []byte{0, 0, 16, 146}})
		backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	}
	for backend.Flush() == nil {
		message, err := backend.Receive()
		query, ok := message.(*pgproto3.Query)
		if err != nil || !ok {
			return
		}
		backend.Send(&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{{Name: []byte("q"), DataTypeOID: 25, DataTypeSize: -1, TypeModifier: -1}}})
		backend.Send(&pgproto3.DataRow{Values: [][]byte{[]byte(query.String)}})
		backend.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
		backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	}
}

func simple(c *pgx.ConnConfig) { c.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol }

func echo(t *testing.T, q interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}) {
	t.Helper()
	var got string
	if err := q.QueryRow(t.Context(), "select me").Scan(&got); err != nil || got != "select me" {
		t.Errorf("got %q, %v", got, err)
	}
}

// Proves that Connect needs no answer of the daemon but the grant: the scripted server would take a start-up message for
// a query.
func TestConnectStartsUpWithoutAsking(t *testing.T) {
	d := newDaemon(t)
	conn, err := pgxhandoff.Connect(t.Context(), handoff.Request{Socket: d.socket, Database: "orders", User: "app",
		Parameters: map[string]string{"TimeZone": "UTC"}, ApplicationName: "me"}, simple,
		func(c *pgx.ConnConfig) { c.RuntimeParams["search_path"] = "shop" })
	if err != nil {
		t.Fatal(err)
	}
	call := <-d.calls
	if call.Database != "orders" || call.User != "app" || call.State != handoff.Ready || call.ApplicationName != "me" ||
		!slices.Equal(call.Parameters, []handoff.Parameter{{Name: "TimeZone", Value: "UTC"}, {Name: "search_path", Value: "shop"}}) {
		t.Errorf("asked for %+v", call)
	}
	if v := conn.PgConn().ParameterStatus("server_version"); v != "17.2" || conn.PgConn().PID() != 77 || conn.PgConn().TxStatus() != 'I' {
		t.Errorf("version %s, pid %d, status %c", v, conn.PgConn().PID(), conn.PgConn().TxStatus())
	}
	echo(t, conn)
	if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
		t.Error(err)
	}
	if got := <-d.cancels; got != [2]uint32{77, 4242} {
		t.Errorf("cancelled %v", got)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// Proves that a pool whose connections are all taken can still cancel: a cancel request acquires nothing.
func TestPoolCancelsWhenFull(t *testing.T) {
	d := newDaemon(t)
	config, err := pgxpool.ParseConfig("sslmode=disable pool_max_conns=1 default_query_exec_mode=simple_protocol dbname=orders user=app")
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.DialFunc = pgxhandoff.DialFunc(handoff.Request{Socket: d.socket, Database: "orders"})
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
	if v := conn.Conn().PgConn().ParameterStatus("server_version"); v != "started" {
		t.Errorf("start-up was not left to the daemon: %s", v)
	}
	echo(t, conn)
	if err := conn.Conn().PgConn().CancelRequest(t.Context()); err != nil {
		t.Error(err)
	}
	if got := <-d.cancels; got != [2]uint32{77, 4242} || len(d.calls) != 1 {
		t.Errorf("cancelled %v after %d acquires", got, len(d.calls))
	}
}

func TestRefusalIsAServersError(t *testing.T) {
	d := newDaemon(t)
	for _, state := range []handoff.State{handoff.Ready, handoff.Startup} {
		_, err := pgxhandoff.Connect(t.Context(), handoff.Request{Socket: d.socket, Database: "full", State: state})
		var e *pgconn.PgError
		if !errors.As(err, &e) || e.Code != "53300" || e.Message != "pool is full" || e.Hint != "pool.max" {
			t.Errorf("%s: got %v", state, err)
		}
	}
}

func TestMissingDaemonIsAnError(t *testing.T) {
	_, err := pgxhandoff.Connect(t.Context(), handoff.Request{Socket: filepath.Join(t.TempDir(), "s"), Database: "orders"})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestContextEndsAWaitingConnect(t *testing.T) {
	d := newDaemon(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { <-d.calls; stop() }() // ends with the request
	if _, err := pgxhandoff.Connect(ctx, handoff.Request{Socket: d.socket, Database: "wait"}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestEnvironmentOfOtherServersHasNoInfluence(t *testing.T) {
	d := newDaemon(t)
	for name, value := range map[string]string{"PGHOST": "elsewhere", "PGPORT": "99999", "PGDATABASE": "other", "PGUSER": "someone",
		"PGPASSWORD": "p", "PGSERVICE": "absent", "PGSERVICEFILE": "/nonexistent", "PGSSLMODE": "verify-full", "PGSSLCERT": "/x",
		"PGSSLKEY": "/x", "PGSSLROOTCERT": "/x", "PGOPTIONS": "-c work_mem=1", "PGAPPNAME": "other", "PGTZ": "X",
		"PGCONNECT_TIMEOUT": "soon", "PGTARGETSESSIONATTRS": "nonsense", "PGMINPROTOCOLVERSION": "9", "PGMAXPROTOCOLVERSION": "9",
		"PGREQUIREAUTH": "nonsense", "PGCHANNELBINDING": "nonsense", "PGSSLNEGOTIATION": "nonsense", "PGSSLCERTMODE": "nonsense"} {
		t.Setenv(name, value)
	}
	conn, err := pgxhandoff.Connect(t.Context(), handoff.Request{Socket: d.socket, Database: "orders", User: "app"}, simple)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if c := <-d.calls; c.Database != "orders" || c.User != "app" || len(c.Parameters) != 0 || c.ApplicationName != "" {
		t.Errorf("asked for %+v", c)
	}
	echo(t, conn)
}

func TestUnusedDialEndsWithClose(t *testing.T) {
	conn, err := pgxhandoff.DialFunc(handoff.Request{Socket: "/nowhere/s"})(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error)
	go func() { // ends with Close
		_, err := conn.Read(make([]byte, 1))
		read <- err
	}()
	if err := errors.Join(conn.SetDeadline(time.Now().Add(time.Hour)), conn.Close(), conn.Close()); err != nil {
		t.Error(err)
	}
	if err := <-read; !errors.Is(err, net.ErrClosed) {
		t.Errorf("a reader got %v", err)
	}
	if _, err := conn.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a writer got %v", err)
	}
	if got := conn.RemoteAddr().String(); got != "/nowhere/.s.PGSQL.5432" {
		t.Error(got)
	}
}
