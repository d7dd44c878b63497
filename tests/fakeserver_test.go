package tests

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"

	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/pgwire"
	"pghandoff/tests/testca"
)

// fakeServer is as much of a PostgreSQL as functions see through pghandoff: TLS
// 1.3 with a client certificate, a login without a password, and an answer to
// each simple query. It is there for what a real one cannot do: thousands of
// backends on a small machine, and KeyUpdates.
type fakeServer struct {
	t       testing.TB
	cluster *throwaway.Cluster // as settings want it; it does not run
	config  *tls.Config
	// encrypt puts TLS on a connection; nil: crypto/tls does.
	encrypt func(net.Conn) (net.Conn, error)
	// result writes the rows of a query; nil: one row with the query itself.
	result func(w io.Writer, sql []byte) error

	mu    sync.Mutex
	conns map[net.Conn]bool // nil once closed
	work  sync.WaitGroup
}

// startFakeServer starts one that ends with the test. What the daemon does wrong
// in its eyes fails the test.
func startFakeServer(t testing.TB, change func(*fakeServer)) *fakeServer {
	t.Helper()
	ca := testca.New(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.RootsPEM())
	files := testca.Write(t, ca, testca.Client(t, ca, "app", testca.None))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &fakeServer{t: t, conns: map[net.Conn]bool{},
		config: &tls.Config{Certificates: []tls.Certificate{testca.Server(t, ca, testca.None).Certificate}, ClientCAs: roots,
			ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true},
		cluster: &throwaway.Cluster{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, Role: "app", Password: "unused", Database: "orders",
			RootsFile: files.Roots, ClientCertFile: files.Cert, ClientKeyFile: files.Key}}
	change(s)
	s.work.Go(func() { s.accept(l) }) // ended by the clean-up, which waits for it
	t.Cleanup(func() {
		l.Close()
		s.mu.Lock()
		conns := s.conns
		s.conns = nil
		s.mu.Unlock()
		for c := range conns {
			c.Close()
		}
		s.work.Wait()
	})
	return s
}

func (s *fakeServer) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		open := s.conns != nil
		if open {
			s.conns[c] = true
		}
		s.mu.Unlock()
		if !open {
			c.Close()
			return
		}
		s.work.Go(func() { // ends with the connection; the clean-up waits for it
			err := s.serve(c)
			cut := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) // a daemon that stops may dial just then
			if s.forget(c) && err != nil && !cut {
				s.t.Errorf("the server: %v", err)
			}
		})
	}
}

// forget closes a connection and reports whether the server is still open.
func (s *fakeServer) forget(c net.Conn) bool {
	c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	return s.conns != nil
}

const sslRequest = 80877103

// serve is one session, to its end.
func (s *fakeServer) serve(c net.Conn) error {
	code, err := readStartup(c)
	if err != nil || code != sslRequest {
		return fmt.Errorf("first packet has code %d, %w", code, err)
	}
	if _, err := c.Write([]byte{'S'}); err != nil {
		return err
	}
	var encrypted net.Conn
	if s.encrypt != nil {
		if encrypted, err = s.encrypt(c); err != nil {
			return err
		}
	} else {
		encrypted = tls.Server(c, s.config)
	}
	if _, err := readStartup(encrypted); err != nil {
		return err
	}
	if _, err := encrypted.Write(loggedIn()); err != nil {
		return err
	}
	frames := pgwire.NewFrameReader(encrypted, 16<<20)
	for {
		typ, body, err := frames.Next()
		switch {
		case err != nil || typ == 'X':
			return err
		case typ != 'Q' || len(body) == 0:
			return fmt.Errorf("message %q of %d bytes", typ, len(body))
		}
		if err := s.answer(encrypted, body[:len(body)-1]); err != nil {
			return err
		}
	}
}

// answer answers a simple query with rows of one column of text.
func (s *fakeServer) answer(c net.Conn, sql []byte) error {
	w := bufio.NewWriterSize(c, 64<<10)
	w.Write(message('T', "\x00\x01a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x19\xff\xff\xff\xff\xff\xff\x00\x00"))
	result := s.result
	if result == nil {
		result = writeRow
	}
	if err := result(w, sql); err != nil {
		return err
	}
	w.Write(message('C', "SELECT 1\x00"))
	w.Write(message('Z', "I"))
	return w.Flush()
}

// writeRow writes a DataRow with one value.
func writeRow(w io.Writer, value []byte) error {
	head := []byte{'D', 0, 0, 0, 0, 0, 1, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(head[1:], uint32(len(value)+10))
	binary.BigEndian.PutUint32(head[7:], uint32(len(value)))
	_, err := w.Write(append(head, value...))
	return err
}

// readStartup reads a packet without a type and returns its code.
func readStartup(r io.Reader) (code uint32, err error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, err
	}
	_, err = io.CopyN(io.Discard, r, int64(binary.BigEndian.Uint32(head[:]))-8)
	return binary.BigEndian.Uint32(head[4:]), err
}

// loggedIn is what a server says after a login.
func loggedIn() []byte {
	b := pgwire.AppendAuthenticationOk(nil)
	for _, p := range []pgwire.Parameter{{Name: "server_version", Value: "15.0"}, {Name: "server_encoding", Value: "UTF8"}, {Name: "client_encoding", Value: "UTF8"},
		{Name: "DateStyle", Value: "ISO, MDY"}, {Name: "TimeZone", Value: "UTC"}, {Name: "integer_datetimes", Value: "on"},
		{Name: "standard_conforming_strings", Value: "on"}, {Name: "application_name"}} {
		b = pgwire.AppendParameterStatus(b, p)
	}
	return pgwire.AppendReadyForQuery(pgwire.AppendBackendKeyData(b, 7, 7), 'I')
}
