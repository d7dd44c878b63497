package tlsstate_test

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"pghandoff/tlsstate"
)

// crl signs a list of these certificates, in PEM; change alters the template.
func (a *authority) crl(t testing.TB, revoked []*x509.Certificate, change func(*x509.RevocationList)) []byte {
	t.Helper()
	list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(time.Hour)}
	for _, c := range revoked {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries,
			x509.RevocationListEntry{SerialNumber: c.SerialNumber, RevocationTime: time.Now().Add(-30 * time.Minute)})
	}
	if change != nil {
		change(list)
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, a.cert, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

// below is an authority that a signs.
func (a *authority) below(t testing.TB, name string) *authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key}
}

func staleList(l *x509.RevocationList) {
	l.ThisUpdate, l.NextUpdate = time.Now().Add(-3*time.Hour), time.Now().Add(-time.Hour)
}
func earlyList(l *x509.RevocationList) {
	l.ThisUpdate, l.NextUpdate = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
}

// revocationCases are chains with an authority between, and lists; libpq judges the same in TestLibpqAgrees.
type revocationCase struct {
	name     string
	lists    []byte
	kind     tlsstate.VerifyKind // -1: accepted
	above    bool
	sentence string
}

func revocationCases(t testing.TB, root, middle *authority, leaf *x509.Certificate) []revocationCase {
	join := func(lists ...[]byte) (all []byte) {
		for _, l := range lists {
			all = append(all, l...)
		}
		return all
	}
	clean := root.crl(t, nil, nil)
	twin := newAuthority(t, "middle CA") // of the same name, with another key
	return []revocationCase{
		{"nothing revoked", join(clean, middle.crl(t, nil, nil)), -1, false, ""},
		{"another one revoked", join(clean, middle.crl(t, []*x509.Certificate{root.cert}, nil)), -1, false, ""},
		{"revoked", join(clean, middle.crl(t, []*x509.Certificate{leaf}, nil)), tlsstate.Revoked, false, "server certificate was revoked on 20"},
		{"authority revoked", join(root.crl(t, []*x509.Certificate{middle.cert}, nil), middle.crl(t, nil, nil)), tlsstate.Revoked, true,
			"certificate of an authority above the server's was revoked"},
		{"no list of the root's", middle.crl(t, nil, nil), tlsstate.NoList, true, "no revocation list of CN=root CA is there"},
		{"no list of the middle's", clean, tlsstate.NoList, false, "no revocation list of CN=middle CA is there"},
		{"stale", join(clean, middle.crl(t, nil, staleList)), tlsstate.StaleList, false, "not in its time (a newer one was due on 20"},
		{"early", join(clean, middle.crl(t, nil, earlyList)), tlsstate.StaleList, false, "not in its time"},
		{"stale beside a good one", join(clean, middle.crl(t, nil, staleList), middle.crl(t, nil, nil)), -1, false, ""},
		{"of another with the same name", join(clean, twin.crl(t, nil, nil)), tlsstate.BadList, false, "not signed by the authority"},
	}
}

// chained makes a leaf below an authority between.
func chained(t testing.TB) (root, middle *authority, leaf *tls.Certificate) {
	root = newAuthority(t, "root CA")
	middle = root.below(t, "middle CA")
	leaf = middle.issue(t, nil)
	leaf.Certificate = append(leaf.Certificate, middle.cert.Raw)
	return root, middle, leaf
}

func TestWholeChainIsLookedUpInTheLists(t *testing.T) {
	root, middle, leaf := chained(t)
	for _, c := range revocationCases(t, root, middle, leaf.Leaf) {
		t.Run(c.name, func(t *testing.T) {
			lists, err := tlsstate.ParseRevocations(c.lists)
			if err != nil {
				t.Fatal(err)
			}
			config := tlsstate.Config{Host: "db1.example.com", Roots: root.pool(), Revocations: lists}
			nc := serve(t, &tls.Config{Certificates: []tls.Certificate{*leaf}}, false, nil)
			s, err := tlsstate.Client(background(t), nc, config)
			judgeRevocation(t, s, err, c, false)

			listening := tlsstate.ServerConfig{Certificate: leaf, Negotiation: tlsstate.Direct, ClientAuth: tlsstate.RequireClientCert,
				ClientRoots: root.pool(), Revocations: lists}
			nc = accept(t, listening, func(s *tlsstate.Stream, err error) error {
				judgeRevocation(t, nil, err, c, true)
				return nil
			})
			if s, err := tlsstate.Client(background(t), nc, tlsstate.Config{Host: "db1.example.com", Roots: root.pool(), Negotiation: tlsstate.Direct, Certificate: leaf}); err == nil {
				s.Read(make([]byte, 1))
				s.Close()
			}
		})
	}
}

func judgeRevocation(t *testing.T, s *tlsstate.Stream, err error, c revocationCase, client bool) {
	t.Helper()
	if s != nil {
		s.Close()
	}
	if c.kind < 0 {
		if err != nil {
			t.Error(err)
		}
		return
	}
	sentence := c.sentence
	if client {
		sentence = strings.ReplaceAll(sentence, "server", "client")
	}
	var bad *tlsstate.VerifyError
	if !errors.As(err, &bad) || bad.Kind != c.kind || bad.Above != c.above || bad.Client != client || !strings.Contains(err.Error(), sentence) {
		t.Errorf("error %v", err)
	}
}

func TestListsThatCoverAPartAreRefused(t *testing.T) {
	ca := newAuthority(t, "test CA")
	partial := ca.crl(t, nil, func(l *x509.RevocationList) {
		l.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 28}, Critical: true, Value: []byte{0x30, 0}}}
	})
	for name, data := range map[string][]byte{"partial": partial, "empty": nil, "no list": []byte("-----BEGIN X-----\n-----END X-----\n"),
		"nonsense": []byte("nonsense"), "cut": partial[:len(partial)/2]} {
		if r, err := tlsstate.ParseRevocations(data); err == nil || r != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	good, _ := pem.Decode(ca.crl(t, nil, nil))
	if _, err := tlsstate.ParseRevocations(good.Bytes); err != nil {
		t.Error("DER:", err)
	}
}

// Any bytes as lists: no panic, and what is read has a list.
func FuzzParseRevocations(f *testing.F) {
	ca := newAuthority(f, "test CA")
	f.Add(ca.crl(f, []*x509.Certificate{ca.cert}, nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := tlsstate.ParseRevocations(data); (r == nil) != (err != nil) {
			t.Fatal(fmt.Sprint(r, err))
		}
	})
}
