package bench

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"pghandoff/certs"
)

// fakeServer is as much of a PostgreSQL as an idle connection needs: TLS with a
// client certificate, a login without a password, and an answer to anything.
type fakeServer struct {
	port     int
	listener net.Listener
	config   *tls.Config
	work     sync.WaitGroup

	mu      sync.Mutex
	conns   map[net.Conn]bool // nil once closed
	problem error             // the first one
}

// startFakeServer starts one with a certificate of the CA; close ends it.
func startFakeServer(ca *certs.DevCA) (*fakeServer, error) {
	issued, err := ca.IssueServer([]string{"127.0.0.1"}, time.Hour)
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(issued.ChainPEM, issued.KeyPEM)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.RootsPEM())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	f := &fakeServer{listener: listener, port: listener.Addr().(*net.TCPAddr).Port, conns: map[net.Conn]bool{},
		config: &tls.Config{Certificates: []tls.Certificate{certificate}, ClientCAs: roots,
			ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13}}
	f.work.Go(f.accept) // ends with the listener; close waits for it
	return f, nil
}

func (f *fakeServer) accept() {
	for {
		conn, err := f.listener.Accept()
		if err != nil {
			return // closed
		}
		f.mu.Lock()
		open := f.conns != nil
		if open {
			f.conns[conn] = true
		}
		f.mu.Unlock()
		if !open {
			_ = conn.Close()
			return
		}
		f.work.Go(func() { f.note(f.serve(conn)) }) // ends when close closes the connection; close waits for it
	}
}

// note keeps the first problem that is not an end.
func (f *fakeServer) note(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conns != nil && f.problem == nil {
		f.problem = err
	}
}

func (f *fakeServer) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.problem
}

// close ends all connections. It may be called once.
func (f *fakeServer) close() {
	_ = f.listener.Close()
	f.mu.Lock()
	conns := f.conns
	f.conns = nil
	f.mu.Unlock()
	for conn := range conns {
		_ = conn.Close()
	}
	f.work.Wait()
}

// sslRequest is the code in place of a version that asks for TLS.
const sslRequest = 80877103

// serve is one session.
func (f *fakeServer) serve(raw net.Conn) error {
	defer raw.Close()
	code, err := readStartup(raw)
	if err != nil {
		return err
	}
	if code != sslRequest {
		return fmt.Errorf("the daemon did not ask for TLS, but sent code %d", code)
	}
	if _, err := raw.Write([]byte{'S'}); err != nil {
		return err
	}
	conn := tls.Server(raw, f.config)
	if _, err := readStartup(conn); err != nil {
		return err
	}
	if _, err := conn.Write(loggedIn()); err != nil {
		return err
	}
	var head [5]byte
	for {
		if _, err := io.ReadFull(conn, head[:]); err != nil || head[0] == 'X' {
			return err
		}
		if _, err := io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint32(head[1:]))-4); err != nil {
			return err
		}
		if _, err := conn.Write(append(message('C', "DISCARD ALL\x00"), message('Z', "I")...)); err != nil {
			return err
		}
	}
}

// readStartup reads a message without a type and returns its code.
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
	var b bytes.Buffer
	b.Write(message('R', "\x00\x00\x00\x00"))
	for _, parameter := range [][2]string{{"server_version", "15.0"}, {"server_encoding", "UTF8"}, {"client_encoding", "UTF8"},
		{"DateStyle", "ISO, MDY"}, {"TimeZone", "UTC"}, {"integer_datetimes", "on"}, {"standard_conforming_strings", "on"},
		{"application_name", ""}, {"is_superuser", "off"}, {"session_authorization", "app"}, {"IntervalStyle", "postgres"},
		{"in_hot_standby", "off"}, {"default_transaction_read_only", "off"}} {
		b.Write(message('S', parameter[0]+"\x00"+parameter[1]+"\x00"))
	}
	b.Write(message('K', "\x00\x00\x00\x07\x00\x00\x00\x07"))
	b.Write(message('Z', "I"))
	return b.Bytes()
}
