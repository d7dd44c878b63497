// Package tlsstate is one live TLS connection as a value. It negotiates TLS with a PostgreSQL server ([Client]), or takes
// the server's part for a client ([Server]). The handshake is left to a library: crypto/tls, or utls in package
// utlshandshake, behind [Handshaker]. The record layer is ours from the first application record on: keys, sequence numbers
// and half-sent records are plain data in a [Conn], which opens and seals bytes that somebody else reads and writes. So a
// connection can be stopped between any two bytes, written down ([State]), and gone on with elsewhere.
//
// # What it refuses
//
// It opens no sockets, starts no goroutines and writes no logs. TLS 1.2 is spoken with ephemeral keys and AEADs only
// ([SuiteError] names another choice), nothing older ([VersionError]); there is no session resumption, no 0-RTT, no
// renegotiation and no post-handshake client authentication. PostgreSQL has none of these. There is no downgrade: what
// [Mode] names is what is checked, and only [ErrNotOffered] leaves a connection on which plaintext may follow. A common name
// is never compared with a host, as in RFC 9525 and unlike libpq.
//
// # Invariants
//
//   - A byte of the connection is in the kernel or in the state, nowhere else. During the handshake a gate lets the library
//     read no further than the record that it needs; Client asserts afterwards that no record is half read and that none
//     was given to the library after it had told us the server's application secret, or with TLS 1.2 none but the Finished
//     behind the ChangeCipherSpec. Both sequence numbers are then 0, or 1. A server of TLS 1.3 has its secrets before it
//     reads the client's Finished; there it is crypto/tls that stops behind that, and the gate that keeps it from reading on.
//   - A sequence number, and with it a nonce, is used once. A key of TLS 1.3 is changed in time; one of TLS 1.2 cannot be,
//     so that [Conn.Retire] asks for a new connection and Seal stops when nobody heeds it. What was sealed is kept until it
//     is written or the connection is lost; it is never sealed again. After an error a Conn is dead and says so ([ErrDead]).
//   - A connection has one owner: [Conn.Export] leaves a dead Conn behind, [Adopt] an empty [State]. What a State writes
//     down is complete at any point between two calls; what a program of another format wrote is refused.
//   - What a peer can make us hold is bounded (one record, 64 KiB of handshake message), and so is what it can make us do
//     without sending data, and how many KeyUpdates our caller can send (allowance.go).
//   - Secrets are behind pointers and behind Format: no way of printing a Conn or a State shows them. They are overwritten
//     when they are replaced and when the connection is given up, as far as that is ours to do.
//
// # What is claimed, and what is not
//
// Claimed: RFC 8446 section 5 and the parts of 4.6 and 6 that follow a handshake, RFC 5246 with RFC 5288, 5289 and 7905 for
// the same; verification as libpq's, but for the stricter points above. Not claimed: anything about the handshake itself,
// which is the library's; constant time beyond that of Go's AEADs; wiping of copies that the library, an AEAD or the garbage
// collector made; a FIPS mode. Under GODEBUG=fips140=only there is no record layer of ours: the connection stays inside
// crypto/tls, see [Notice] and [ErrNotDetachable].
//
// # Shortest use
//
//	nc, err := dialer.DialContext(ctx, "tcp", "db1.example.com:5432")
//	s, err := tlsstate.Client(ctx, nc, tlsstate.Config{Host: "db1.example.com"}) // verify-full, system roots
//	...                                                                          // log in over s, a net.Conn
//	nc, conn, err := s.Detach()                                                  // from here an event loop does the I/O
//	buf, err = conn.Seal(buf[:0], query)
//	plain, n, err := conn.Open(received)
package tlsstate
