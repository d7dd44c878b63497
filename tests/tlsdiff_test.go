package tests

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pghandoff/tlsstate"
	"pghandoff/tlsstate/utlshandshake"
)

var (
	diffSuites13 = []uint16{tls.TLS_AES_128_GCM_SHA256, tls.TLS_AES_256_GCM_SHA384, tls.TLS_CHACHA20_POLY1305_SHA256}
	diffSuites12 = []uint16{
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
		tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
	}
	diffSuites = slices.Concat(diffSuites13, diffSuites12)
)

// diffRun is one connection: who is on the other side, and with what.
type diffRun struct {
	*testing.T
	suite uint16
	rng   *rand.Rand // of our side
	other *rand.Rand // of the peer's
}

func (r diffRun) version() uint16 {
	if slices.Contains(diffSuites12, r.suite) {
		return tls.VersionTLS12
	}
	return tls.VersionTLS13
}

func (r diffRun) rsa() bool { return strings.Contains(tls.CipherSuiteName(r.suite), "_RSA_") }

// far is the other side. talk sends p in pieces of its own and changes its key, if it can, at random points; it returns the
// digest of the want bytes that it received.
type far interface {
	talk(p []byte, want int) (digest []byte, updates int, err error)
}

// diffTotals is what all runs together did.
type diffTotals struct {
	bytes, moves, ours, theirs int
	atRest                     map[string]int
}

func (d *diffTotals) add(m *mover, bytes, theirs int) {
	d.bytes += bytes
	d.moves += m.moves
	d.ours += m.updates
	d.theirs += theirs
	for name, n := range m.atRest {
		d.atRest[name] += n
	}
}

// Proves that a connection which is written down and taken up again at random points, while both sides send records of
// random sizes and change their keys, carries the same bytes both ways with every suite of both versions, whoever is on
// the other side: crypto/tls as server and as client, utls as our handshaker and as client, a record layer that shares no
// code with ours, OpenSSL as server and as client, PostgreSQL.
func TestConnectionsThatMoveAgreeWithEveryPeer(t *testing.T) {
	amount := 128 << 10 // bytes each way and run
	if whole() {
		amount = 1 << 20
	}
	from, all := seed(t), diffTotals{atRest: map[string]int{}}
	for _, peer := range []struct {
		name   string
		suites []uint16
		start  func(diffRun) (*tlsstate.Stream, far)
	}{
		{"crypto-tls server", diffSuites, func(r diffRun) (*tlsstate.Stream, far) { return dialLibrary(r, tlsstate.Std{}, false) }},
		{"utls handshaker", diffSuites, func(r diffRun) (*tlsstate.Stream, far) { return dialLibrary(r, utlshandshake.UTLS{}, false) }},
		{"other record layer", diffSuites13, func(r diffRun) (*tlsstate.Stream, far) { return dialLibrary(r, tlsstate.Std{}, true) }},
		{"crypto-tls client", slices.Concat(diffSuites13[:1], diffSuites12), acceptStd},
		{"utls client", diffSuites, acceptUTLS},
		{"openssl s_server", diffSuites, dialOpenSSL},
		{"openssl s_client", diffSuites, acceptOpenSSL},
	} {
		t.Run(peer.name, func(t *testing.T) {
			part := diffTotals{atRest: map[string]int{}}
			for _, suite := range peer.suites {
				t.Run(tls.CipherSuiteName(suite), func(t *testing.T) {
					r := newDiffRun(t, suite, from)
					s, other := peer.start(r)
					r.both(s, other, amount, &part)
				})
			}
			all.merge(t, part)
		})
	}
	t.Run("PostgreSQL", func(t *testing.T) {
		part := diffTotals{atRest: map[string]int{}}
		postgresDiff(t, from, amount, &part)
		all.merge(t, part)
	})
	all.judge(t)
}

// newDiffRun has random numbers that follow from the seed and the test's name, so that one run can be repeated alone.
func newDiffRun(t *testing.T, suite uint16, from uint64) diffRun {
	name := fnv.New64a()
	name.Write([]byte(t.Name()))
	return diffRun{t, suite, rand.New(rand.NewPCG(from, name.Sum64())), rand.New(rand.NewPCG(name.Sum64(), from))}
}

// diffAlphabet is the data's: OpenSSL has no command of these letters, and begins no notice with them; to COPY none is special.
const diffAlphabet = "0123456789xyz"

// text is random data.
func text(rng *rand.Rand, n int) []byte {
	raw := make([]byte, n)
	var key [32]byte
	for i := range key {
		key[i] = byte(rng.Uint32())
	}
	rand.NewChaCha8(key).Read(raw)
	for i, b := range raw {
		raw[i] = diffAlphabet[int(b)%len(diffAlphabet)]
	}
	return raw
}

// both has the two sides send at the same time and compares the digests.
func (r diffRun) both(s *tlsstate.Stream, other far, amount int, totals *diffTotals) {
	r.Helper()
	if i := s.Info(); i.Suite != r.suite || i.Version != r.version() {
		r.Fatalf("%s with %s", i.VersionName(), i.SuiteName())
	}
	up, down := text(r.rng, amount), text(r.other, amount)
	m, sum := newMover(r.T, s, r.rng), sha256.New()
	m.sink = func(p []byte) { sum.Write(p) }
	if f, ok := other.(libraryFar); ok && f.counts != nil {
		m.asks = false // it takes that for a mistake
	}
	type result struct {
		digest  []byte
		updates int
		err     error
	}
	talked := make(chan result, 1)
	go func() { // ends with its data, or with the connection; waited for below
		digest, updates, err := other.talk(down, len(up))
		if err != nil {
			unix.Shutdown(m.fd, unix.SHUT_RDWR) // so that we do not wait for it
		}
		talked <- result{digest, updates, err}
	}()
	err := m.exchange(up, func() bool { return m.received >= len(down) })
	if err != nil {
		unix.Shutdown(m.fd, unix.SHUT_RDWR)
	}
	there := <-talked
	if err = errors.Join(err, there.err); err != nil {
		r.Fatal(err)
	}
	wantUp, wantDown := sha256.Sum256(up), sha256.Sum256(down)
	if !bytes.Equal(there.digest, wantUp[:]) || !bytes.Equal(sum.Sum(nil), wantDown[:]) {
		r.Errorf("other data came: here %v, there %v", !bytes.Equal(sum.Sum(nil), wantDown[:]), !bytes.Equal(there.digest, wantUp[:]))
	}
	totals.add(m, len(up)+len(down), there.updates)
}

func (d *diffTotals) merge(t *testing.T, part diffTotals) {
	t.Logf("%d kB, %d moves with %v at rest, %d keys of ours changed, %d of the peer's by itself", part.bytes/1000, part.moves, part.atRest, part.ours, part.theirs)
	d.bytes += part.bytes
	d.moves += part.moves
	d.ours += part.ours
	d.theirs += part.theirs
	for name, n := range part.atRest {
		d.atRest[name] += n
	}
}

func (d *diffTotals) judge(t *testing.T) {
	t.Logf("%d MB in all, %d moves with %v at rest, %d keys of ours changed, %d of the peers' by themselves", d.bytes/1_000_000, d.moves, d.atRest, d.ours, d.theirs)
	least := 20
	if whole() {
		least = 200
		if d.bytes < 100_000_000 {
			t.Errorf("only %d bytes", d.bytes)
		}
	}
	if d.moves < 10*least || d.ours < least || d.theirs < least/2 || d.atRest["ciphertext"] < least || d.atRest["plaintext"] < least || d.atRest["unsent"] < least {
		t.Error("that is too little of something")
	}
}
