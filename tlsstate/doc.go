// Package tlsstate is one live TLS connection as a value. It negotiates TLS with a PostgreSQL server, or
// takes the server's part for a client ([Server]), leaves the handshake
// to a library (crypto/tls, or utls in package utlshandshake, behind [Handshaker]) and owns the record layer from the first application record on: keys,
// sequence numbers and half-sent records are plain data in a [Conn], which opens and seals bytes that somebody else reads
// and writes. So a connection can be stopped between any two bytes and gone on with elsewhere.
//
// # What it refuses
//
// It opens no sockets, starts no goroutines and writes no logs. TLS 1.2 is spoken with ephemeral keys and AEADs only
// ([SuiteError] names another choice), nothing older ([VersionError]); there is no session resumption, no 0-RTT, no
// renegotiation and no post-handshake client authentication. PostgreSQL has none of these. There is no downgrade: what
// [Mode] names is what is checked, and only [ErrNotOffered] leaves a connection on which plaintext may follow.
//
// # Invariants
//
//   - A byte of the connection is in the kernel or in the state, nowhere else. During the handshake a gate lets the library
//     read no further than the record that it needs; Client asserts afterwards that no record is half read and that none
//     was given to the library after it had told us the server's application secret, or with TLS 1.2 none but the Finished
//     behind the ChangeCipherSpec. Both sequence numbers are then 0, or 1.
//   - A sequence number, and with it a nonce, is used once. A key of TLS 1.3 is changed in time; one of TLS 1.2 cannot be,
//     so that [Conn.Retire] asks for a new connection and Seal stops when nobody heeds it.
//     What was sealed is kept until it is written or the connection is lost; it is never sealed again. After an error a Conn is dead and says so ([ErrDead]).
//   - What a peer can make us hold is bounded (one record, 64 KiB of handshake message), and so is what it can make us do
//     without sending data, and how many KeyUpdates our caller can send (allowance.go).
//   - Under GODEBUG=fips140=only there is no record layer of ours: see [Notice] and [ErrNotDetachable].
//   - A connection has one owner: [Conn.Export] leaves a dead Conn behind, [Adopt] an empty [State]. What a State writes
//     down is complete at any point between two calls; what a program of another format wrote is refused.
//   - Secrets are behind pointers and behind Format: no way of printing a Conn shows them.
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
