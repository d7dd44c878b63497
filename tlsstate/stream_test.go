package tlsstate_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"pghandoff/tlsstate"
)

// piped is a Stream and the server's Conn on the other end of an unbuffered pipe, where a write waits for its reader.
func piped(t *testing.T) (*tlsstate.Stream, net.Conn, *tlsstate.Conn) {
	t.Helper()
	client, server := pair(t, suiteIDs[0])
	a, b := net.Pipe()
	t.Cleanup(func() { a.Close(); b.Close() })
	return tlsstate.NewStream(a, client), b, server
}

// readRecords reads and opens from nc until it has n bytes of data.
func readRecords(nc net.Conn, c *tlsstate.Conn, n int) ([]byte, error) {
	var raw, data []byte
	buf := make([]byte, 32<<10)
	for len(data) < n {
		got, err := nc.Read(buf)
		if err != nil {
			return data, err
		}
		raw = append(raw, buf[:got]...)
		for {
			plain, used, err := c.Open(raw)
			if err != nil {
				return data, err
			}
			data = append(data, plain...)
			if raw = raw[used:]; used == 0 {
				break
			}
		}
	}
	return data, nil
}

// Both directions at once over 10 MB, keys changed by both sides at random points.
func TestKeysChangeAtRandomPointsOfATransfer(t *testing.T) {
	const seed, total = 11, 10 << 20
	client, server := pair(t, suiteIDs[2])
	a, b := socketPair(t)
	s := tlsstate.NewStream(a, client)
	data := make([]byte, total)
	rand.NewChaCha8([32]byte{seed}).Read(data)

	run(t, func() error { // sends the data, and counts what it is sent
		defer b.Close()
		rnd := rand.New(rand.NewPCG(seed, 1))
		echoed := make(chan error, 1)
		go func() { // ends with the data or the connection; waited for below
			got, err := readRecords(b, server, total)
			if err == nil && !bytes.Equal(got, data) {
				err = errors.New("other data came back")
			}
			echoed <- err
		}()
		for rest := data; len(rest) > 0; {
			n := min(len(rest), rnd.IntN(40_000)+1)
			wire, err := server.Seal(nil, rest[:n])
			if err == nil && rnd.IntN(4) == 0 {
				wire, err = server.RequestKeyUpdate(wire, rnd.IntN(2) == 0)
			}
			if err != nil {
				return err
			}
			if _, err := b.Write(wire); err != nil {
				return err
			}
			rest = rest[n:]
		}
		return <-echoed
	})

	pipe, into := io.Pipe()
	written := make(chan error, 1)
	go func() { // ends with the data; waited for below
		_, err := io.Copy(s, pipe)
		written <- err
	}()
	sum := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(sum, into), s, total); err != nil {
		t.Error(err)
	}
	into.Close()
	if err := <-written; err != nil {
		t.Error(err)
	}
	if want := sha256.Sum256(data); !bytes.Equal(sum.Sum(nil), want[:]) {
		t.Error("other data arrived")
	}
}

func TestReadGoesOnWhileAWriteWaits(t *testing.T) {
	s, nc, server := piped(t)
	written := make(chan error, 1)
	go func() { // ends when the pipe is read below
		_, err := s.Write([]byte("query"))
		written <- err
	}()
	one := make([]byte, 1)
	io.ReadFull(nc, one) // the write is under way
	wire, _ := server.RequestKeyUpdate(nil, true)
	wire, _ = server.Seal(wire, []byte("rows"))
	run(t, func() error { _, err := nc.Write(wire); return err })
	expect(t, s, "rows")
	rest := make([]byte, len("query")+22-1)
	io.ReadFull(nc, rest)
	if got, err := openAll(server, append(one, rest...)); string(got) != "query" || err != nil {
		t.Fatal(got, err)
	}
	answer := make([]byte, 27) // by the writer, at once
	if _, err := io.ReadFull(nc, answer); err != nil {
		t.Fatal(err)
	}
	if _, err := openAll(server, answer); err != nil {
		t.Fatal(err)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
}

func TestAnswerThatCannotBeSentWaitsForTheNextWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, nc, server := piped(t)
		wire, _ := server.RequestKeyUpdate(nil, true)
		wire, _ = server.Seal(wire, []byte("rows"))
		go nc.Write(wire) // ends when s has read it
		started := time.Now()
		expect(t, s, "rows") // though nobody reads our answer
		if waited := time.Since(started); waited > time.Second {
			t.Errorf("waited %s", waited)
		}
		go s.Write([]byte("query")) // ends when it is read below
		if got, err := readRecords(nc, server, 5); string(got) != "query" || err != nil {
			t.Fatal(got, err)
		}
	})
}

func TestWriteGoesOnAfterADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, nc, server := piped(t)
		data := bytes.Repeat([]byte("0123456789"), 20_000)
		s.SetWriteDeadline(time.Now().Add(time.Second))
		part := make([]byte, 20_000)
		go io.ReadFull(nc, part) // ends as so much is written
		n, err := s.Write(data)
		if !errors.Is(err, os.ErrDeadlineExceeded) || n != 64<<10 {
			t.Fatal(n, err)
		}
		if again, err := s.Write(data[n:]); again != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("the deadline is still there", again, err)
		}
		s.SetWriteDeadline(time.Time{})
		go s.Write(data[n:]) // ends when it is read below
		got, err := readRecords(&prefixed{nc, part}, server, len(data))
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	})
}

// prefixed is a connection of which some bytes were already read.
type prefixed struct {
	net.Conn
	before []byte
}

func (p *prefixed) Read(b []byte) (int, error) {
	if len(p.before) > 0 {
		n := copy(b, p.before)
		p.before = p.before[n:]
		return n, nil
	}
	return p.Conn.Read(b)
}

func TestReadGoesOnAfterADeadlineAmidARecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, nc, server := piped(t)
		wire, _ := server.Seal(nil, []byte("rows"))
		for i, b := range wire {
			if i > 0 {
				s.SetReadDeadline(time.Now().Add(time.Second))
				if _, err := s.Read(make([]byte, 9)); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatal(err)
				}
				s.SetReadDeadline(time.Time{})
			}
			if i == len(wire)-1 {
				go nc.Write([]byte{b}) // ends when s has read it
				break
			}
			go func() { nc.Write([]byte{b}) }() // likewise
			s.SetReadDeadline(time.Now().Add(time.Second))
			s.Read(make([]byte, 9))
		}
		s.SetReadDeadline(time.Time{})
		expect(t, s, "rows")
	})
}

func TestTruncationIsNotTheEnd(t *testing.T) {
	s, nc, server := piped(t)
	wire, _ := server.Seal(nil, []byte("rows"))
	run(t, func() error { nc.Write(wire); return nc.Close() })
	expect(t, s, "rows")
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, tlsstate.ErrTruncated) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
}

// A server says why and hangs up; our write fails, and its words can still be read.
func TestLastWordsAreReadAfterAFailedWrite(t *testing.T) {
	client, server := pair(t, suiteIDs[0])
	a, b := net.Pipe()
	defer b.Close()
	s := tlsstate.NewStream(brokenWriter{a}, client)
	defer a.Close()
	if _, err := s.Write([]byte("query")); !errors.Is(err, os.ErrPermission) {
		t.Fatal(err)
	}
	wire, _ := server.Seal(nil, []byte("FATAL"))
	run(t, func() error { _, err := b.Write(wire); return err })
	expect(t, s, "FATAL")
	if _, err := s.Write([]byte("query")); !errors.Is(err, os.ErrPermission) {
		t.Fatal(err)
	}
	if _, _, err := s.Detach(); err == nil {
		t.Fatal("detached with a record lost")
	}
}

type brokenWriter struct{ net.Conn }

func (brokenWriter) Write([]byte) (int, error) { return 3, os.ErrPermission }

func TestBrokenPeerIsToldWhy(t *testing.T) {
	s, nc, server := piped(t)
	told := make(chan error, 1)
	go func() { // ends when s has answered
		nc.Write([]byte{20, 3, 3, 0, 1, 1}[:5])
		_, err := readRecords(nc, server, 1)
		told <- err
	}()
	_, err := s.Read(make([]byte, 1))
	var broke *tlsstate.ProtocolError
	if !errors.As(err, &broke) {
		t.Fatal(err)
	}
	var alert *tlsstate.AlertError
	if err := <-told; !errors.As(err, &alert) || alert.Code != broke.Alert {
		t.Fatal(err)
	}
}

// In exact mode no byte behind the record is read; buffered, all are, and go along with Detach.
func TestDetachTakesEveryByteAlong(t *testing.T) {
	for _, wide := range []bool{false, true} {
		t.Run(fmt.Sprintf("buffered %v", wide), func(t *testing.T) {
			client, server := pair(t, suiteIDs[0])
			a, b := socketPair(t)
			s := tlsstate.NewStream(a, client)
			s.Buffered(wide)
			var wire []byte
			for _, word := range []string{"one ", "two ", "three"} {
				wire, _ = server.Seal(wire, []byte(word))
			}
			b.Write(wire)
			b.Close()
			expect(t, s, "on")
			if held := s.Held(); held < 2 || wide != (held > 2) {
				t.Errorf("%d bytes wait", held)
			}
			nc, conn, err := s.Detach()
			if err != nil {
				t.Fatal(err)
			}
			if string(conn.HeldPlain()) != "e " || wide && len(conn.HeldIn()) == 0 || !wide && len(conn.HeldIn()) > 0 {
				t.Errorf("held %q and %d bytes", conn.HeldPlain(), len(conn.HeldIn()))
			}
			rest, _ := io.ReadAll(nc)
			got, err := openAll(conn, append(bytes.Clone(conn.HeldIn()), rest...))
			if string(got) != "two three" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
			if _, err := s.Read(make([]byte, 1)); err == nil || s.Held() != 0 {
				t.Error("the stream still reads")
			}
			if _, err := s.Write([]byte("x")); err == nil {
				t.Error("the stream still writes")
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if _, err := nc.Write([]byte("x")); err != nil && errors.Is(err, net.ErrClosed) {
				t.Error("the stream closed what it gave back")
			}
			if _, _, err := s.Detach(); err == nil {
				t.Error("detached twice")
			}
		})
	}
}

func TestDetachTakesUnsentBytesAlong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, nc, server := piped(t)
		s.SetWriteDeadline(time.Now().Add(time.Second))
		part := make([]byte, 10)
		go io.ReadFull(nc, part) // ends as so much is written
		if n, err := s.Write([]byte("query")); n != 5 || err == nil {
			t.Fatal(n, err)
		}
		_, conn, err := s.Detach()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := openAll(server, append(part, conn.HeldOut()...)); string(got) != "query" || err != nil {
			t.Fatal(got, err)
		}
	})
}

func TestDetachIsRefusedAmidARead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, nc, _ := piped(t)
		ended := make(chan error, 1)
		go func() { _, err := s.Read(make([]byte, 1)); ended <- err }() // ends with Close
		synctest.Wait()
		if _, _, err := s.Detach(); err == nil {
			t.Error("detached")
		}
		go io.Copy(io.Discard, nc) // ends with Close
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}

func TestCloseIsQuickAndIdempotent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, _ := piped(t) // nobody reads the close_notify
		started := time.Now()
		for range 3 {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		if waited := time.Since(started); waited != 500*time.Millisecond {
			t.Errorf("took %s", waited)
		}
		if _, err := s.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		if _, err := s.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}

func TestCloseEndsAWriteUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, _ := piped(t)
		ended := make(chan error, 1)
		go func() { _, err := s.Write(make([]byte, 1<<20)); ended <- err }() // ends with Close
		synctest.Wait()
		s.Close()
		if err := <-ended; err == nil {
			t.Error("written")
		}
	})
}

// Between any two calls a Stream can be taken apart and put together again.
func TestStreamsFollowEachOther(t *testing.T) {
	client, server := pair(t, suiteIDs[1])
	a, b := socketPair(t)
	data := make([]byte, 300_000)
	rand.NewChaCha8([32]byte{3}).Read(data)
	run(t, func() error {
		wire, err := server.Seal(nil, data)
		if err == nil {
			_, err = b.Write(wire)
		}
		if err != nil {
			return err
		}
		got, err := readRecords(b, server, len(data))
		if err == nil && !bytes.Equal(got, data) {
			err = errors.New("other data came back")
		}
		return err
	})
	rnd := rand.New(rand.NewPCG(3, 3))
	var got []byte
	var nc net.Conn = a
	conn := client
	for len(got) < len(data) {
		s := tlsstate.NewStream(nc, conn)
		s.Buffered(rnd.IntN(2) == 0)
		if s.RemoteAddr().String() != b.LocalAddr().String() || s.LocalAddr() == nil || s.NetConn() != nc {
			t.Fatal("another transport")
		}
		s.SetDeadline(time.Now().Add(20 * time.Second))
		buf := make([]byte, 1+rnd.IntN(10_000))
		n, err := s.Read(buf)
		if err == nil {
			_, err = s.Write(buf[:n])
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, buf[:n]...)
		if nc, conn, err = s.Detach(); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, data) {
		t.Error("other data arrived")
	}
}

func TestUnsentBytesAreSentByTheNextStream(t *testing.T) {
	client, server := pair(t, suiteIDs[0])
	a, b := socketPair(t)
	wire, _ := client.Seal(nil, []byte("query"))
	client.HoldOut(wire)
	s := tlsstate.NewStream(a, client)
	if err := s.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := readRecords(b, server, 9); string(got) != "query" || err != io.EOF {
		t.Fatal(string(got), err)
	}
}
