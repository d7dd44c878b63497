// Package demo shows the whole of pghandoff at work on a throwaway PostgreSQL
// that demands TLS, a client certificate and SCRAM: it starts server and
// daemon, lets three kinds of function query through it, times how each gets
// its connection beside a direct one, and shows what the audit says of them.
//
// It refuses to print numbers that it did not measure in this run: where a way
// is less than ten times faster than a direct connection, that is an error.
//
//	err := demo.Run(ctx, demo.Options{Out: os.Stdout})
package demo
