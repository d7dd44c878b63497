// Package pgxhandoff gives pgx connections that pghandoff hands over.
//
// [Connect] returns a *pgx.Conn on a descriptor that stands at ReadyForQuery already: no TLS, no password, and no
// start-up round trip. [Config] is the same as a configuration, for database/sql or a pool, and [DialFunc] fits into
// any configuration, for pgxpool with start-up left to the daemon. Cancelling works with each, when every connection is
// taken too.
//
// It refuses to guess: settings of the environment that point at some other server (PGHOST, PGSERVICE, PGSSLMODE, …)
// have no influence on a Config. A refusal of the daemon comes out as a *pgconn.PgError with the daemon's SQLSTATE, as
// it would from a server.
//
// How it works: pgx builds a connection only by start-up, so the start-up message is answered in this process, from what
// the grant tells. A dialled connection decides what it is by the first bytes written to it: a cancel request goes to
// the wire socket beside the handoff socket, anything else acquires a lease first.
//
// The package starts no goroutine and sets no timer; pgx itself has both.
//
// The shortest use:
//
//	conn, err := pgxhandoff.Connect(ctx, handoff.Request{Database: "orders"})
//	if err != nil { … }
//	defer conn.Close(ctx)
package pgxhandoff
