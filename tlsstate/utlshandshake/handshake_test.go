package utlshandshake

import (
	"bytes"
	"crypto/rand"
	stdtls "crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pghandoff/tlsstate"
)

var versions = []uint16{stdtls.VersionTLS12, stdtls.VersionTLS13}

var suites12 = []uint16{
	stdtls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, stdtls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, stdtls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
	stdtls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, stdtls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, stdtls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

// Both libraries come to the same with the same server, and the data passes.
func TestBothLibrariesAgree(t *testing.T) {
	data := make([]byte, 1<<20)
	rand.Read(data)
	run := func(t *testing.T, kind string, version, suite uint16) {
		server, config := pair(t, kind)
		server.MinVersion, server.MaxVersion = version, version
		if suite != 0 {
			server.CipherSuites = []uint16{suite}
		}
		var infos []*tlsstate.Info
		for _, h := range []tlsstate.Handshaker{tlsstate.Std{}, UTLS{}} {
			config.Handshaker = h
			s, err := tlsstate.Client(background(t), serve(t, server), config)
			if err != nil {
				t.Fatal(err)
			}
			infos = append(infos, s.Info())
			echo(t, s, data)
			s.Close()
		}
		a, b := *infos[0], *infos[1]
		if version == stdtls.VersionTLS12 {
			a.Curve = b.Curve // utls does not tell
		}
		if !slices.EqualFunc(a.PeerCertificates, b.PeerCertificates, (*x509.Certificate).Equal) {
			t.Error("other certificates")
		}
		a.PeerCertificates, b.PeerCertificates = nil, nil
		if x, y := fmt.Sprintf("%+v", a), fmt.Sprintf("%+v", b); x != y || a.Version != version || suite != 0 && a.Suite != suite {
			t.Errorf("\n%s\n%s", x, y)
		}
	}
	for _, kind := range []string{"P-256", "P-384", "RSA", "Ed25519"} {
		t.Run("TLS 1.3 "+kind, func(t *testing.T) { run(t, kind, stdtls.VersionTLS13, 0) })
	}
	for _, suite := range suites12 {
		kind := "P-256"
		if strings.Contains(stdtls.CipherSuiteName(suite), "_RSA_") {
			kind = "RSA"
		}
		t.Run(stdtls.CipherSuiteName(suite), func(t *testing.T) { run(t, kind, stdtls.VersionTLS12, suite) })
	}
}

// What utls itself says of its secrets is what it wrote to the key log, and what the server has.
func TestSecretsOfTheKeyLogAreTheLibrarysAndTheServers(t *testing.T) {
	for _, version := range versions {
		t.Run(stdtls.VersionName(version), func(t *testing.T) {
			server, _ := pair(t, "P-256")
			var ours, theirs bytes.Buffer
			server.KeyLogWriter = &theirs
			uc, _, err := handshake(background(t), serve(t, server), tlsstate.Params{
				ServerName: "db1.example.com", ALPN: []string{"postgresql"}, MinVersion: version, MaxVersion: version, Suites: suites12,
				Time: time.Now, Verify: func([]*x509.Certificate) error { return nil }, KeyLog: &ours,
			})
			if err != nil {
				t.Fatal(err)
			}
			label, want := "CLIENT_TRAFFIC_SECRET_0", uc.HandshakeState.State13.TrafficSecret
			if version == stdtls.VersionTLS12 {
				label, want = "CLIENT_RANDOM", uc.HandshakeState.MasterSecret
			}
			for _, log := range []string{ours.String(), theirs.String()} {
				if !strings.Contains(log, label+" "+hex.EncodeToString(uc.HandshakeState.Hello.Random)+" "+hex.EncodeToString(want)) || len(want) == 0 {
					t.Errorf("%s is not in\n%s", label, log)
				}
			}
		})
	}
}

func TestEveryKindOfClientCertificateIsSigned(t *testing.T) {
	for _, version := range versions {
		for _, kind := range []string{"P-256", "P-384", "RSA", "Ed25519", ""} {
			t.Run(stdtls.VersionName(version)+" "+kind, func(t *testing.T) {
				server, config := pair(t, "P-256")
				server.MaxVersion, server.ClientAuth = version, stdtls.RequestClientCert
				if kind != "" {
					ours, roots := issue(t, kind)
					config.Certificate = &ours
					server.ClientAuth, server.ClientCAs = stdtls.RequireAndVerifyClientCert, roots
				}
				s, err := tlsstate.Client(background(t), serve(t, server), config)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				echo(t, s, []byte("x"))
				if i := s.Info(); !i.ClientCertRequested || i.ClientCertSent != (kind != "") {
					t.Errorf("%+v", i)
				}
			})
		}
	}
}

// Servers that have one group only: P-256 and the post-quantum one cost no round trip, and the others one, but for what
// was learnt from the last dial. The same for crypto/tls, which has no share for P-256 at first.
func TestKeySharesSpareTheHelloRetryRequest(t *testing.T) {
	for _, c := range []struct {
		group      stdtls.CurveID
		utls, std  bool // a HelloRetryRequest at the first dial
		utlsSecond bool // and at the second
	}{
		{stdtls.CurveP256, false, true, false}, {stdtls.X25519MLKEM768, false, false, false},
		{stdtls.X25519, true, false, false}, {stdtls.CurveP384, true, true, false},
	} {
		t.Run(c.group.String(), func(t *testing.T) {
			server, config := pair(t, "P-256")
			server.CurvePreferences = []stdtls.CurveID{c.group}
			for _, h := range []tlsstate.Handshaker{UTLS{}, tlsstate.Std{}} {
				first, second := c.utls, c.utlsSecond
				if h == (tlsstate.Std{}) {
					first, second = c.std, false
				}
				config.Handshaker, config.Group = h, 0
				for _, want := range []bool{first, second} {
					s, err := tlsstate.Client(background(t), serve(t, server), config)
					if err != nil {
						t.Fatal(err)
					}
					i := s.Info()
					if i.HelloRetryRequest != want || i.Curve != c.group {
						t.Errorf("%T with %v: HelloRetryRequest %v, group %v", h, config.Group, i.HelloRetryRequest, i.Curve)
					}
					if i.HelloRetryRequest {
						config.Group = i.Curve
					}
					echo(t, s, []byte("x"))
					s.Close()
				}
			}
		})
	}
}

// Errors are the same whichever library found them.
func TestErrorsAreOurs(t *testing.T) {
	t.Run("refused client certificate of TLS 1.2", func(t *testing.T) {
		server, config := pair(t, "P-256")
		server.MaxVersion, server.ClientAuth = stdtls.VersionTLS12, stdtls.RequireAnyClientCert
		_, err := tlsstate.Client(background(t), serve(t, server), config)
		var alert *tlsstate.AlertError
		if !errors.As(err, &alert) {
			t.Fatal(err)
		}
	})
	t.Run("wrong name", func(t *testing.T) {
		server, config := pair(t, "P-256")
		config.Host = "db2.example.com"
		_, err := tlsstate.Client(background(t), serve(t, server), config)
		var verify *tlsstate.VerifyError
		if !errors.As(err, &verify) || verify.Kind != tlsstate.WrongName {
			t.Fatal(err)
		}
	})
	t.Run("suite", func(t *testing.T) {
		server, config := pair(t, "RSA")
		server.MaxVersion, server.CipherSuites = stdtls.VersionTLS12, []uint16{stdtls.TLS_RSA_WITH_AES_128_CBC_SHA}
		_, err := tlsstate.Client(background(t), serve(t, server), config)
		var suite *tlsstate.SuiteError
		if !errors.As(err, &suite) {
			t.Fatal(err)
		}
	})
	t.Run("version", func(t *testing.T) {
		server, config := pair(t, "P-256")
		server.MaxVersion, config.MinVersion = stdtls.VersionTLS12, stdtls.VersionTLS13
		_, err := tlsstate.Client(background(t), serve(t, server), config)
		var version *tlsstate.VersionError
		if !errors.As(err, &version) {
			t.Fatal(err)
		}
	})
}
