// Package certs answers two questions for a TLS client: who are we, and whom do we trust.
//
// An identity is a client certificate with its private key and the trust anchors that came with it, read from one
// source. A [Source] gives a validated set as [Material]; an [Identity] publishes such sets one after the other as
// immutable [Snapshot] values, each with a generation number. [FileSource] reads PEM files, [SelfSource] is a
// development CA in a folder, and [DevCA] is that CA by itself, for demonstrations and tests.
//
// It refuses to publish half a set. The standard library's helpers accept a chain file that was cut in the middle and a
// bundle of which only the first half can be read; this package does not: every byte of a file must belong to a
// complete block of a kind that is expected there (or be a comment before one), the key must belong to the first
// certificate, each certificate must be signed by the next, none may be expired, and the leaf must be allowed to be a
// client. It does not verify the client's chain against the trust anchors, because the authority that the database
// accepts clients from is often another one than the authority that signed the database's certificate.
//
// Invariants:
//   - A snapshot never changes; a dial takes one and keeps it, so a rotation during the dial is harmless.
//   - A bad set leaves the previous snapshot in place. The same bytes leave the generation as it is.
//   - Generations of one identity only grow.
//   - No error and no printed form holds a byte of a private key.
//
// Nothing here opens a connection, starts a goroutine or writes a log line. A [Watcher] tells when files may have changed,
// on the goroutine of the caller, who tries the [Identity.Candidate] and publishes it.
//
// The shortest use:
//
//	id := certs.NewIdentity("orders-client", certs.FileSource{Cert: "tls.crt", Key: "tls.key", Roots: "ca.crt"})
//	if _, err := id.Reload(ctx, time.Now()); err != nil { … }
//	s := id.Current()
//	cfg := &tls.Config{RootCAs: s.Roots, Certificates: []tls.Certificate{*s.Certificate}, ServerName: host}
package certs
