package utlshandshake

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	stdtls "crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pghandoff/tlsstate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func background(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func key(t testing.TB, kind string) crypto.Signer {
	t.Helper()
	var k crypto.Signer
	var err error
	switch kind {
	case "P-256":
		k, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "P-384":
		k, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "RSA":
		k, err = rsa.GenerateKey(rand.Reader, 2048)
	case "Ed25519":
		_, k, err = ed25519.GenerateKey(rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// issue makes a certificate that signs itself, for both sides.
func issue(t testing.TB, kind string) (stdtls.Certificate, *x509.CertPool) {
	t.Helper()
	k := key(t, kind)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "db1.example.com"}, DNSNames: []string{"db1.example.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return stdtls.Certificate{Certificate: [][]byte{der}, PrivateKey: k, Leaf: leaf}, pool
}

// pair is a server's configuration and ours that fit.
func pair(t testing.TB, kind string) (*stdtls.Config, tlsstate.Config) {
	t.Helper()
	cert, roots := issue(t, kind)
	return &stdtls.Config{Certificates: []stdtls.Certificate{cert}, NextProtos: []string{"postgresql"}},
		tlsstate.Config{Host: "db1.example.com", Roots: roots, Negotiation: tlsstate.Direct, Handshaker: UTLS{}}
}

// serve runs an echo server of crypto/tls on the other end of what it returns.
func serve(t testing.TB, config *stdtls.Config) net.Conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // ends with its connection; the clean-up waits for it
		defer close(done)
		defer server.Close()
		tc := stdtls.Server(server, config)
		if _, err := io.Copy(tc, tc); err == nil {
			tc.CloseWrite()
		}
	}()
	t.Cleanup(func() { client.Close(); <-done })
	return client
}

// echo sends data through s and reads it again.
func echo(t testing.TB, s *tlsstate.Stream, data []byte) {
	t.Helper()
	wrote := make(chan error, 1)
	go func() { // ends with its data, or with s; waited for below
		_, err := s.Write(data)
		if err == nil {
			err = s.CloseWrite()
		}
		wrote <- err
	}()
	got, err := io.ReadAll(s)
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	if err != nil || string(got) != string(data) {
		t.Fatalf("%d bytes came back, %v", len(got), err)
	}
}
