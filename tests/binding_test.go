package tests

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	bignum "math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pghandoff/pgwire"
	"pghandoff/tests/testpg"
	"pghandoff/tlsstate"
)

// Proves that SCRAM-SHA-256-PLUS works with a real PostgreSQL whatever its certificate is signed with, as the hash of the
// channel binding follows the signature, and that with channel_binding=require nothing weaker is taken.
func TestChannelBindingFollowsTheSignature(t *testing.T) {
	pg := testpg.Start(t, testpg.TLS)
	ec, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rs, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		algorithm x509.SignatureAlgorithm
		key       crypto.Signer
		size      int
	}{
		{x509.SHA256WithRSA, rs, 32}, {x509.SHA384WithRSA, rs, 48}, {x509.SHA512WithRSA, rs, 64},
		{x509.ECDSAWithSHA256, ec, 32}, {x509.ECDSAWithSHA384, ec, 48}, {x509.ECDSAWithSHA512, ec, 64},
		{x509.SHA256WithRSAPSS, rs, 32}, {x509.SHA384WithRSAPSS, rs, 48}, {x509.SHA512WithRSAPSS, rs, 64},
	} {
		t.Run(c.algorithm.String(), func(t *testing.T) {
			leaf := reissue(t, pg.DataDir, c.algorithm, c.key)
			if err := pg.Reload(); err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AddCert(leaf)
			var s *tlsstate.Stream
			for deadline := time.Now().Add(20 * time.Second); ; { // until the new certificate is there
				s = dialTLS(t, pg.Host, pg.Port, tlsstate.Config{Mode: tlsstate.Require, Host: pg.Host, MaxVersion: tls.VersionTLS13})
				if s.Info().ServerCertSHA256 == sha256.Sum256(leaf.Raw) {
					break
				}
				s.Close()
				if time.Now().After(deadline) {
					t.Fatal("the server goes on with its old certificate")
				}
			}
			if n := len(s.Info().EndpointBinding); n != c.size {
				t.Errorf("the binding has %d bytes", n)
			}
			if session := login(t, s, pg.Role, pg.Database, pg.Password); session.Method != "scram-sha-256-plus" {
				t.Errorf("logged in by %s", session.Method)
			}
			s = dialTLS(t, pg.Host, pg.Port, tlsstate.Config{Host: pg.Host, Roots: roots})
			binding := append([]byte(nil), s.Info().EndpointBinding...)
			binding[0] ^= 1
			if _, err := pgwire.Login(s, pgwire.LoginConfig{User: pg.Role, Database: pg.Database, Password: pg.Password, Encrypted: true,
				EndpointBinding: binding, ChannelBinding: pgwire.BindingRequire}); err == nil {
				t.Error("another server's binding is taken")
			}
		})
	}
}

// reissue writes a certificate that signs itself in place of the server's, whose files it leaves to their owner.
func reissue(t *testing.T, dir string, algorithm x509.SignatureAlgorithm, key crypto.Signer) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{SerialNumber: bignum.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "binding"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"}, SignatureAlgorithm: algorithm,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"server.crt": {Type: "CERTIFICATE", Bytes: der}, "server.key": {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return leaf
}
