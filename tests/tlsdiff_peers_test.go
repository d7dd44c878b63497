package tests

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	cryptorand "crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	mathbig "math/big"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	utls "github.com/refraction-networking/utls"

	"pghandoff/tlsstate"
)

// diffIdentity is a certificate that signs itself, and is trusted.
type diffIdentity struct {
	cert    tls.Certificate
	roots   *x509.CertPool
	certPEM []byte
	keyPEM  []byte
}

// identityFor are the two identities, made once: an RSA key takes its time.
var identityFor = map[bool]func() (*diffIdentity, error){
	false: sync.OnceValues(func() (*diffIdentity, error) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), cryptorand.Reader)
		return newIdentity(key, err)
	}),
	true: sync.OnceValues(func() (*diffIdentity, error) {
		key, err := rsa.GenerateKey(cryptorand.Reader, 2048)
		return newIdentity(key, err)
	}),
}

func newIdentity(key crypto.Signer, err error) (*diffIdentity, error) {
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: mathbig.NewInt(1), Subject: pkix.Name{CommonName: "localhost"},
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(cryptorand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return &diffIdentity{tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, roots,
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})}, nil
}

// identity is the server's, with a key that the suite can use.
func (r diffRun) identity() *diffIdentity {
	r.Helper()
	id, err := identityFor[r.rsa()]()
	if err != nil {
		r.Fatal(err)
	}
	return id
}

func (r diffRun) patience() context.Context {
	ctx, cancel := context.WithTimeout(r.Context(), 20*time.Second)
	r.Cleanup(cancel)
	return ctx
}

// ends are those of a TCP connection.
func (r diffRun) ends() (ours, theirs net.Conn) {
	r.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.Fatal(err)
	}
	defer l.Close()
	if ours, err = net.Dial("tcp", l.Addr().String()); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { ours.Close() })
	if theirs, err = l.Accept(); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { theirs.Close() })
	theirs.SetDeadline(time.Now().Add(time.Minute))
	return ours, theirs
}

// only is a handshaker that brings this suite about with a server that does not insist: one of TLS 1.2 is offered alone by
// the library itself, and those of TLS 1.3, of which libraries offer all, in a hello of our own.
func (r diffRun) only(library tlsstate.Handshaker) tlsstate.Handshaker {
	if r.version() == tls.VersionTLS13 && r.suite != tls.TLS_AES_128_GCM_SHA256 { // which crypto/tls prefers
		return oneSuite(r.suite)
	}
	return suite12{library, r.suite}
}

type suite12 struct {
	tlsstate.Handshaker
	suite uint16
}

func (h suite12) Handshake(ctx context.Context, gate net.Conn, p tlsstate.Params) (tlsstate.Result, error) {
	p.Suites = []uint16{h.suite}
	return h.Handshaker.Handshake(ctx, gate, p)
}

// oneSuite is a handshaker that offers one suite of TLS 1.3 and P-256.
type oneSuite uint16

func (h oneSuite) Handshake(_ context.Context, gate net.Conn, p tlsstate.Params) (tlsstate.Result, error) {
	uc, err := h.client(gate, &utls.Config{ServerName: p.ServerName, InsecureSkipVerify: true, KeyLogWriter: p.KeyLog,
		VerifyConnection: func(s utls.ConnectionState) error { return p.Verify(s.PeerCertificates) }})
	if err != nil {
		return tlsstate.Result{}, err
	}
	state := uc.ConnectionState()
	return tlsstate.Result{Version: state.Version, Suite: state.CipherSuite, ALPN: state.NegotiatedProtocol, PeerCertificates: state.PeerCertificates}, nil
}

func (h oneSuite) client(nc net.Conn, config *utls.Config) (*utls.UConn, error) {
	version := uint16(utls.VersionTLS13)
	if uint16(h) > 0x1400 {
		version = utls.VersionTLS12
	}
	spec := &utls.ClientHelloSpec{TLSVersMin: version, TLSVersMax: version, CompressionMethods: []uint8{0}, CipherSuites: []uint16{uint16(h)},
		Extensions: []utls.TLSExtension{
			&utls.SNIExtension{ServerName: "localhost"}, &utls.ExtendedMasterSecretExtension{},
			&utls.SupportedCurvesExtension{Curves: []utls.CurveID{utls.CurveP256}}, &utls.SupportedPointsExtension{SupportedPoints: []byte{0}},
			&utls.ALPNExtension{AlpnProtocols: []string{"postgresql"}},
			&utls.SignatureAlgorithmsExtension{SupportedSignatureAlgorithms: []utls.SignatureScheme{utls.ECDSAWithP256AndSHA256, utls.PSSWithSHA256, utls.PKCS1WithSHA256}},
		}}
	if version == utls.VersionTLS13 {
		spec.Extensions = append(spec.Extensions, &utls.SupportedVersionsExtension{Versions: []uint16{version}},
			&utls.KeyShareExtension{KeyShares: []utls.KeyShare{{Group: utls.CurveP256}}})
	}
	uc := utls.UClient(nc, config, utls.HelloCustom)
	if err := uc.ApplyPreset(spec); err != nil {
		return nil, err
	}
	return uc, uc.HandshakeContext(context.Background())
}

// libraryFar is a far side in this process.
type libraryFar struct {
	net.Conn
	rng    *rand.Rand
	counts *updates // nil: it begins no KeyUpdates
}

// talk writes and reads in turn, as not everything that is behind this may be used by two.
func (f libraryFar) talk(p []byte, want int) ([]byte, int, error) {
	sum, got, buf := sha256.New(), 0, make([]byte, 40_000)
	for len(p) > 0 || got < want {
		if piece := p[:min(len(p), size(f.rng))]; len(piece) > 0 {
			p = p[len(piece):]
			if _, err := f.Write(piece); err != nil {
				return nil, 0, err
			}
		}
		if got < want {
			n, err := f.Read(buf[:size(f.rng)])
			if err != nil {
				return nil, 0, err
			}
			sum.Write(buf[:n])
			got += n
		}
	}
	if f.counts == nil {
		return sum.Sum(nil), 0, nil
	}
	f.counts.mu.Lock()
	defer f.counts.mu.Unlock()
	return sum.Sum(nil), f.counts.sent, nil
}

// dialLibrary is a Client whose server is crypto/tls, or the handshake of crypto/tls and another record layer.
func dialLibrary(r diffRun, library tlsstate.Handshaker, records bool) (*tlsstate.Stream, far) {
	r.Helper()
	id := r.identity()
	ours, theirs := r.ends()
	config := &tls.Config{Certificates: []tls.Certificate{id.cert}, NextProtos: []string{"postgresql"}, MaxVersion: r.version()}
	other := libraryFar{tls.Server(theirs, config), r.other, nil}
	shaken := make(chan error, 1)
	go func() { // ends with the handshake, or with the connection; waited for below
		if !records {
			shaken <- other.Conn.(*tls.Conn).Handshake()
			return
		}
		config.SessionTicketsDisabled = true
		other.counts = new(updates)
		nc, err := serveRecords(theirs, config, r.other, other.counts)
		other.Conn = nc
		shaken <- err
	}()
	s, err := tlsstate.Client(r.patience(), ours, tlsstate.Config{Host: "localhost", Roots: id.roots, Negotiation: tlsstate.Direct,
		MinVersion: r.version(), MaxVersion: r.version(), Handshaker: r.only(library)})
	if err = errors.Join(err, <-shaken); err != nil {
		r.Fatal(err)
	}
	return s, other
}

// accepted is a Server on one end, while client shakes hands on the other.
func (r diffRun) accepted(client func(net.Conn) (net.Conn, error)) (*tlsstate.Stream, far) {
	r.Helper()
	ours, theirs := r.ends()
	var other net.Conn
	shaken := make(chan error, 1)
	go func() { // ends with the handshake, or with the connection; waited for below
		var err error
		other, err = client(theirs)
		shaken <- err
	}()
	s, err := r.serverOn(ours)
	if err = errors.Join(err, <-shaken); err != nil {
		r.Fatal(err)
	}
	return s, libraryFar{other, r.other, nil}
}

func (r diffRun) serverOn(nc net.Conn) (*tlsstate.Stream, error) {
	return tlsstate.Server(r.patience(), nc, tlsstate.ServerConfig{Certificate: &r.identity().cert, Negotiation: tlsstate.Direct,
		MinVersion: r.version(), MaxVersion: r.version()})
}

func acceptStd(r diffRun) (*tlsstate.Stream, far) {
	return r.accepted(func(nc net.Conn) (net.Conn, error) {
		tc := tls.Client(nc, &tls.Config{RootCAs: r.identity().roots, ServerName: "localhost", NextProtos: []string{"postgresql"}, CipherSuites: []uint16{r.suite}})
		return tc, tc.Handshake()
	})
}

func acceptUTLS(r diffRun) (*tlsstate.Stream, far) {
	return r.accepted(func(nc net.Conn) (net.Conn, error) {
		uc, err := oneSuite(r.suite).client(nc, &utls.Config{RootCAs: r.identity().roots, ServerName: "localhost"})
		return uc, err
	})
}

// skipTo reads lines until this one.
func skipTo(r io.Reader, marker []byte) error {
	var line []byte
	b := make([]byte, 1)
	for {
		if _, err := io.ReadFull(r, b); err != nil {
			return err
		}
		if line = append(line, b[0]); bytes.HasSuffix(line, marker) {
			return nil
		}
	}
}
