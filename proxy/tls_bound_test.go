package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/proxy/loop"
	"pghandoff/tests/testca"
	"pghandoff/tlsstate"
)

// held keeps what is written, once it is told to, for the test to send.
type held struct {
	net.Conn
	fd    int // owned, a duplicate
	keeps bool
	kept  bytes.Buffer
}

func (h *held) Write(p []byte) (int, error) {
	if h.keeps {
		return h.kept.Write(p)
	}
	return h.Conn.Write(p)
}

// encrypted makes an end that speaks TLS with crypto/tls, whose side and what
// that writes to are the other results.
func encrypted(t *testing.T) (end, *tls.Conn, *held) {
	t.Helper()
	ca := testca.New(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.RootsPEM())
	p, err := newPair()
	if err != nil {
		t.Fatal(err)
	}
	widen(p.ours)
	widen(p.theirs)
	double, err := unix.Dup(p.theirs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(double) })
	transport := &held{Conn: connection(t, p.theirs), fd: double}
	server := tls.Server(transport, &tls.Config{Certificates: []tls.Certificate{testca.Server(t, ca, testca.None).Certificate},
		NextProtos: []string{"postgresql"}, SessionTicketsDisabled: true, DynamicRecordSizingDisabled: true})
	shaken := make(chan error, 1)
	go func() { shaken <- server.Handshake() }() // ends with the handshake; waited for below
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := tlsstate.Client(ctx, connection(t, p.ours), tlsstate.Config{Host: "127.0.0.1", Roots: roots, Negotiation: tlsstate.Direct})
	if err = errors.Join(err, <-shaken); err != nil {
		t.Fatal(err)
	}
	e, err := newEnd(stream)
	if err != nil {
		t.Fatal(err)
	}
	return e, server, transport
}

// connection makes a connection of a descriptor, which it owns.
func connection(t *testing.T, fd int) net.Conn {
	t.Helper()
	f := os.NewFile(uintptr(fd), "end")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// What one turn opens is bounded by one read and the record that began before,
// whether there are a few large records in it or thousands of small ones.
func TestOneTurnOpensOneReadOfRecords(t *testing.T) {
	for name, size := range map[string]int{"large records": 16 << 10, "records of one byte": 1} {
		t.Run(name, func(t *testing.T) {
			e, server, transport := encrypted(t)
			r := newRig(t, idleLoop(t), e, -1)
			transport.keeps = true
			for rest := answers; transport.kept.Len() < 8*readSize; rest = rest[size:] {
				if _, err := server.Write(rest[:size]); err != nil {
					t.Fatal(err)
				}
			}
			fill(t, transport.fd, transport.kept.Bytes())
			left, turns := waiting(t, e.fd), 0
			for ; left > tlsstate.MaxRecord; turns++ {
				before := r.b.out
				serverSide{r.b}.Ready(loop.Readable)
				if r.b.over {
					t.Fatal("the lease has ended")
				}
				now := waiting(t, e.fd)
				if taken, given := left-now, r.b.out-before; taken < 1 || taken > readSize || given > readSize+tlsstate.MaxPlain {
					t.Fatalf("turn %d took %d bytes and gave %d", turns, taken, given)
				}
				left = now
				drain(r.function)
			}
			if turns < 3 {
				t.Errorf("only %d turns", turns)
			}
		})
	}
}
