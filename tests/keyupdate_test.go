package tests

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"pghandoff/pgwire"
)

// seed is what a test's random choices come from. PGHANDOFF_TEST_SEED repeats a
// run that has failed.
func seed(t *testing.T) uint64 {
	t.Helper()
	s, err := strconv.ParseUint(os.Getenv("PGHANDOFF_TEST_SEED"), 10, 64)
	if err != nil {
		s = rand.Uint64()
	}
	t.Logf("PGHANDOFF_TEST_SEED=%d", s)
	return s
}

// big is how much goes each way: a result and an upload.
const big = 10 << 20 // 10 MiB

// Proves that 10 MB arrive unchanged, from the server, to it and both at once,
// while the server changes its key at random points and asks for a change of the
// daemon's, and that the daemon does as it is asked.
func TestTenMegabytesWithKeyUpdates(t *testing.T) {
	rounds := 2
	if whole() {
		rounds = 10
	}
	from := seed(t)
	for round := range rounds {
		t.Run(strconv.Itoa(round), func(t *testing.T) { changeKeys(t, from, uint64(round)) })
	}
}

func changeKeys(t *testing.T, from, round uint64) {
	var counts updates
	var sessions atomic.Uint64
	result := make([]byte, big)
	rand.NewChaCha8([32]byte{byte(from), byte(round)}).Read(result)
	server := startFakeServer(t, func(s *fakeServer) {
		s.encrypt = func(c net.Conn) (net.Conn, error) {
			return serveRecords(c, s.config, rand.New(rand.NewPCG(from+round, sessions.Add(1))), &counts)
		}
		s.result = func(w io.Writer, sql []byte) error { return answerWithBytes(w, sql, result) }
	})
	d := serve(t, server.cluster, settings{Pool: "min_idle: 1, max: 1, reset: close"})
	r := d.session()
	r.conn.SetDeadline(time.Now().Add(3 * time.Minute))
	download(t, r, result)
	upload(t, r, result)
	both(t, r, result)
	counts.mu.Lock()
	defer counts.mu.Unlock()
	t.Logf("the server changed its key %d times, asked for %d changes, got %d; %d tickets", counts.sent, counts.asked, counts.got, counts.tickets)
	if counts.sent < 100 || counts.got < 20 || counts.got > counts.asked {
		t.Error("that is not what was to be")
	}
}

// answerWithBytes answers "down" with the result, in rows; "up…" with the digest
// of what it begins; else with the query itself.
func answerWithBytes(w io.Writer, sql, result []byte) error {
	switch {
	case string(sql) == "down":
		for row := range rows(result) {
			if err := writeRow(w, row); err != nil {
				return err
			}
		}
		return nil
	case bytes.HasPrefix(sql, []byte("up")):
		return writeRow(w, digest(sql))
	}
	return writeRow(w, sql)
}

// rows cuts a result into rows of 1 to 20,000 bytes.
func rows(result []byte) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for size := 1; len(result) > 0; size = size*7%20000 + 1 {
			row := result[:min(size, len(result))]
			if result = result[len(row):]; !yield(row) {
				return
			}
		}
	}
}

func digest(p []byte) []byte {
	sum := sha256.Sum256(p)
	return hex.AppendEncode(nil, sum[:])
}

// values reads the answer to a query and returns the values of its rows, one
// after the other.
func (r *raw) values() []byte {
	r.t.Helper()
	var got []byte
	for n := 1; ; n++ {
		if n%100 == 0 { // it waits now and then, so that others have to
			<-time.After(2 * time.Millisecond)
		}
		switch typ, body := r.next(); typ {
		case 'D':
			got = append(got, body[6:]...)
		case 'E':
			e, _ := pgwire.ParseError(body)
			r.t.Fatal(e)
		case 'Z':
			return got
		}
	}
}

func download(t *testing.T, r *raw, want []byte) {
	t.Helper()
	r.send(message('Q', "down\x00"))
	if got := r.values(); !bytes.Equal(digest(got), digest(want)) {
		t.Errorf("download: %d bytes with digest %s, not %s", len(got), digest(got), digest(want))
	}
}

// upload sends what holds no NUL, as a query must not.
func upload(t *testing.T, r *raw, p []byte) {
	t.Helper()
	text := "up" + hex.EncodeToString(p[:len(p)/2])
	r.send(message('Q', text+"\x00"))
	if got := r.values(); !bytes.Equal(got, digest([]byte(text))) {
		t.Errorf("upload: digest %s, not %s", got, digest([]byte(text)))
	}
}

// both sends queries without waiting for answers, which are as long as they.
func both(t *testing.T, r *raw, p []byte) {
	t.Helper()
	text := hex.EncodeToString(p[:len(p)/2])
	sent, queries := make(chan error, 1), 0
	var all []byte
	for row := range rows([]byte(text)) {
		all = append(all, message('Q', string(row)+"\x00")...)
		queries++
	}
	go func() { // ends when all is read, or with the connection; waited for below
		_, err := r.conn.Write(all)
		sent <- err
	}()
	var got []byte
	for range queries {
		got = append(got, r.values()...)
	}
	if err := <-sent; err != nil || !bytes.Equal(digest(got), digest([]byte(text))) {
		t.Errorf("both at once: %v, %d bytes with digest %s, not %s", err, len(got), digest(got), digest([]byte(text)))
	}
}
