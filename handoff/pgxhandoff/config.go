package pgxhandoff

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"pghandoff/handoff"
)

// Connect acquires a lease and returns it as a connection. State defaults to handoff.Ready. The changes are made to the
// configuration before it is used. A refusal is an error that holds a *pgconn.PgError.
//
// Closing the connection ends the lease.
func Connect(ctx context.Context, r handoff.Request, changes ...func(*pgx.ConnConfig)) (*pgx.Conn, error) {
	config, err := Config(r)
	if err != nil {
		return nil, err
	}
	for _, change := range changes {
		change(config)
	}
	return pgx.ConnectConfig(ctx, config)
}

// Config returns a configuration of which every connection is a lease of its own. It may be changed like any other, its
// RuntimeParams too; use it with pgx.ConnectConfig, as a pool's ConnConfig or with stdlib.RegisterConnConfig. State
// defaults to handoff.Ready.
func Config(r handoff.Request) (*pgx.ConnConfig, error) {
	if r.State == "" {
		r.State = handoff.Ready
	}
	socket := handoff.SocketPath(r.Socket)
	if abs, err := filepath.Abs(socket); err == nil {
		socket = abs
	}
	r.Socket, r.User = socket, handoff.UserName(r.User)
	config, err := neutral(filepath.Dir(socket), r.User)
	if err != nil {
		return nil, err
	}
	config.Database, config.Password = r.Database, ""
	config.RuntimeParams = map[string]string{}
	maps.Copy(config.RuntimeParams, r.Parameters)
	if r.ApplicationName != "" {
		config.RuntimeParams["application_name"] = r.ApplicationName
	}
	r.Parameters, r.ApplicationName = nil, "" // they come back with the start-up message
	config.DialFunc = DialFunc(r)
	return config, nil
}

// neutral parses a connection string that leaves nothing to the environment. pgx takes a configuration only from its
// own parser, which reads the environment and cannot be told not to, and which fails on what it does not like there.
func neutral(host, user string) (*pgx.ConnConfig, error) {
	settings := []string{"host=" + quote(host), "port=5432", "user=" + quote(user), "sslmode=disable", "password=''",
		"passfile=/dev/null", "connect_timeout=0", "target_session_attrs=any", "min_protocol_version=3.0",
		"max_protocol_version=3.0", "channel_binding=prefer", "sslcertmode=allow", "sslnegotiation=postgres", "require_auth=''"}
	if os.Getenv("PGSERVICE") != "" {
		file, err := emptyServiceFile()
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }()
		settings = append(settings, "service=pghandoff", fmt.Sprintf("servicefile=/proc/self/fd/%d", file.Fd()))
	}
	config, err := pgx.ParseConfig(strings.Join(settings, " "))
	if err != nil {
		return nil, fmt.Errorf("configure pgx for pghandoff: %w", err)
	}
	config.TLSConfig, config.Fallbacks, config.RequireAuth = nil, nil, ""
	return config, nil
}

// emptyServiceFile returns a file in memory with a service that sets nothing: once PGSERVICE is set, some service must
// be found.
func emptyServiceFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("pghandoff-service", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("set PGSERVICE aside: %w", err)
	}
	file := os.NewFile(uintptr(fd), "service")
	if _, err := file.WriteString("[pghandoff]\n"); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("set PGSERVICE aside: %w", err)
	}
	return file, nil
}

func quote(value string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value) + "'"
}

// DialFunc returns a function for pgconn.Config.DialFunc; it ignores the address. State defaults to handoff.Startup:
// the daemon answers the start-up message. With handoff.Ready that is done in this process; the message's user,
// database and parameters then prevail over the request's.
//
// The configuration must not ask for TLS (sslmode=disable): there is none between a function and pghandoff.
func DialFunc(r handoff.Request) pgconn.DialFunc {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return newDialled(ctx, r), nil
	}
}
