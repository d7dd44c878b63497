package tests

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"testing"
	"time"

	"pghandoff/certs"
	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/tests/testpg"
	"pghandoff/tlsstate"
)

// postgresDiff runs every suite with PostgreSQL as the server, first those that go with its ECDSA key, then those for RSA.
func postgresDiff(t *testing.T, from uint64, amount int, totals *diffTotals) {
	pg := testpg.Start(t, testpg.TLS)
	roots, rsa := pg.CA.Roots(), false
	for _, suite := range diffSuites {
		t.Run(tls.CipherSuiteName(suite), func(t *testing.T) {
			r := newDiffRun(t, suite, from)
			if r.rsa() && !rsa {
				rsa, roots = true, r.identity().roots
				useIdentity(t, pg, r.identity())
			}
			r.postgres(pg, roots, amount, totals)
		})
	}
}

func useIdentity(t *testing.T, pg *throwaway.Cluster, id *diffIdentity) {
	t.Helper()
	if err := pg.SetServerCertificate(&certs.Issued{ChainPEM: id.certPEM, KeyPEM: id.keyPEM}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := pg.Restart(ctx); err != nil {
		t.Fatal(err)
	}
}

// postgresFar are the questions to a server over a connection that moves.
type postgresFar struct {
	*mover
	t    *testing.T
	rest []byte             // of what was received: no whole message
	seen func(byte, []byte) // told of each message
	last byte               // type of the last
}

// postgres sends lines to the server by COPY, has it tell their digest, and has it send them back.
func (r diffRun) postgres(pg *throwaway.Cluster, roots *x509.CertPool, amount int, totals *diffTotals) {
	s := dialTLS(r.T, pg.Host, pg.Port, tlsstate.Config{Host: pg.Host, Roots: roots, MinVersion: r.version(), MaxVersion: r.version(), Handshaker: r.postgresOnly()})
	if i := s.Info(); i.Suite != r.suite {
		r.Fatalf("%s", i.SuiteName())
	}
	login(r.T, s, pg.Role, pg.Database, pg.Password)
	f := &postgresFar{mover: newMover(r.T, s, r.rng), t: r.T}
	f.sink = f.frames
	data := text(r.other, amount)
	want := sha256.Sum256(data)

	f.ask(message('Q', "CREATE TEMP TABLE lines (n serial, line text)\x00"), 'Z')
	f.ask(message('Q', "COPY lines (line) FROM STDIN\x00"), 'G')
	f.ask(copyIn(r, data), 'Z')
	var digest, got []byte
	f.seen = func(kind byte, body []byte) {
		if kind == 'D' && len(body) > 6 {
			digest = bytes.Clone(body[6:])
		}
	}
	f.ask(message('Q', "SELECT encode(sha256(convert_to(string_agg(line, '' ORDER BY n), 'UTF8')), 'hex') FROM lines\x00"), 'Z')
	f.seen = func(kind byte, body []byte) {
		if kind == 'd' {
			got = append(got, bytes.TrimSuffix(body, []byte("\n"))...)
		}
	}
	f.ask(message('Q', "COPY (SELECT line FROM lines ORDER BY n) TO STDOUT\x00"), 'Z')
	if sum := sha256.Sum256(got); string(digest) != hex.EncodeToString(want[:]) || sum != want {
		r.Errorf("PostgreSQL got the digest %s, sent %x, and not %x", digest, sum, want)
	}
	totals.add(f.mover, len(data)+len(got), 0)
}

// postgresOnly offers the suite alone: PostgreSQL 15 has no setting for those of TLS 1.3.
func (r diffRun) postgresOnly() tlsstate.Handshaker {
	if r.version() == tls.VersionTLS13 {
		return oneSuite(r.suite)
	}
	return r.only(tlsstate.Std{})
}

// copyIn are the messages that carry data in lines, neither of which is as long as the others.
func copyIn(r diffRun, data []byte) []byte {
	var out []byte
	for len(data) > 0 {
		line := data[:min(len(data), size(r.other))]
		data = data[len(line):]
		out = append(out, message('d', string(line)+"\n")...)
	}
	return append(out, message('c', "")...)
}

// ask sends p and waits for a message of this type.
func (f *postgresFar) ask(p []byte, until byte) {
	f.t.Helper()
	f.last = 0
	if err := f.exchange(p, func() bool { return f.last == until }); err != nil {
		f.t.Fatal(err)
	}
}

// frames cuts what was received into messages.
func (f *postgresFar) frames(p []byte) {
	f.rest = append(f.rest, p...)
	for len(f.rest) >= 5 {
		n := 1 + int(binary.BigEndian.Uint32(f.rest[1:]))
		if len(f.rest) < n {
			return
		}
		f.last = f.rest[0]
		if f.last == 'E' {
			f.t.Errorf("PostgreSQL: %q", f.rest[5:n])
		}
		if f.seen != nil {
			f.seen(f.last, f.rest[5:n])
		}
		f.rest = f.rest[n:]
	}
}
