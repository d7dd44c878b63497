package proxy

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"pghandoff/proxy/config"
	"pghandoff/tests/testca"
	"pghandoff/tlsstate"
)

// The first connection to a server that wants another key share costs a round
// trip, the next ones do not; after a failure nothing is taken for granted.
func TestDiallerLearnsWhichKeyShareAServerWants(t *testing.T) {
	cert := testca.Server(t, testca.New(t), testca.None).Certificate
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, CurvePreferences: []tls.CurveID{tls.CurveP256}, NextProtos: []string{"postgresql"}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // ended by the close of l
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.(*tls.Conn).Handshake()
			conn.Close()
		}
	}()
	address := l.Addr().(*net.TCPAddr)
	server := config.Server{Host: "127.0.0.1", Port: uint16(address.Port)}
	d := &dialler{mode: tlsstate.Require, direct: tlsstate.Direct}
	retried := func() bool {
		t.Helper()
		nc, err := net.DialTimeout("tcp", l.Addr().String(), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		stream, err := d.encrypt(t.Context(), &Upstream{server: server}, nc)
		if err != nil {
			t.Fatal(err)
		}
		return stream.Info().HelloRetryRequest
	}
	for i, want := range []bool{true, false, false} {
		if got := retried(); got != want {
			t.Errorf("dial %d: HelloRetryRequest %v", i, got)
		}
	}
	here, there := net.Pipe()
	there.Close()
	if _, err := d.encrypt(t.Context(), &Upstream{server: server}, here); err == nil {
		t.Error("a dead connection is encrypted")
	}
	if !retried() {
		t.Error("what was learnt before a failure is still believed")
	}
}
