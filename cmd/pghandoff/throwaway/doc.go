// Package throwaway runs a PostgreSQL with its own CA, TLS, client certificates and SCRAM in a temporary folder, gone
// when closed. "pghandoff demo" shows everything on it, and the tests run against it.
//
// It refuses to be a database for anything that matters: durability is switched off, the superuser needs no password on
// the private socket, and Close deletes the data. It listens on 127.0.0.1 and on a socket in its own folder, nowhere
// else.
//
// Invariants:
//   - The server is a child process: it ends with Close, and by a signal of the kernel if this process dies. Only the
//     folder survives a death without Close.
//   - PostgreSQL refuses to run as root, so as root its programs run as an unprivileged user ("postgres" if there is
//     one, else "nobody").
//   - Any number may run at once and next to other PostgreSQL servers.
//
// The programs initdb and postgres come from $PGHANDOFF_PG_BIN, from what is installed, or are fetched (see
// [FindPrograms]).
//
// The shortest use:
//
//	cluster, err := throwaway.Start(ctx, throwaway.Config{TLS: true, ClientCert: true})
//	if err != nil { … }
//	defer cluster.Close()
//	conn, err := pgx.Connect(ctx, cluster.URL())
package throwaway
