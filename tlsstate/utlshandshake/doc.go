// Package utlshandshake lets github.com/refraction-networking/utls do the handshake in place of crypto/tls.
//
// The reason is one round trip: PostgreSQL up to 17 takes the group P-256 only unless told otherwise, and crypto/tls
// offers a key share for it only after the server has asked with a HelloRetryRequest. utls writes a ClientHello as it is
// told: key shares for P-256 and for the post-quantum X25519MLKEM768, the others named without one.
//
// # What it refuses
//
// It copies no browser, offers no resumption, no 0-RTT and no encrypted hello, and it has no server's side. It is not the
// default: utls follows crypto/tls with delay, in what is fixed there too, and knows no FIPS mode (see SECURITY.md).
//
// # Shortest use
//
//	s, err := tlsstate.Client(ctx, nc, tlsstate.Config{Host: host, Handshaker: utlshandshake.UTLS{}})
package utlshandshake
