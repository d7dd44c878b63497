package proxy

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pghandoff/proxy/config"
)

const someVerifier = "SCRAM-SHA-256$4096:MDEyMzQ1Njc4OWFiY2RlZg==$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="

func TestUsersAreReadStrictly(t *testing.T) {
	all, err := parseUsers([]byte("; a remark\n# another\n\n\"app\" \"" + someVerifier + "\"\r\n  \"with \"\"quotes\"\" and ü\"\t\"" + someVerifier + "\"  \n"))
	if err != nil || len(all) != 2 {
		t.Fatalf("got %d, %v", len(all), err)
	}
	if _, ok := all[`with "quotes" and ü`]; !ok {
		t.Error("the name with quotes is not there")
	}
	for text, want := range map[string]string{
		"":                              "names no user",
		"app " + someVerifier:           "line 1",
		"\"app\" \"hunter2\"":           "line 1: user \"app\": not a SCRAM-SHA-256 verifier",
		"\"app\" \"md5hunter2":          "line 1: not of the form",
		"\n\"app\" \"\" \"\"\n":         "line 2",
		"\"\" \"" + someVerifier + "\"": "line 1",
		strings.Repeat("\"app\" \""+someVerifier+"\"\n", 2): "line 2: user \"app\" is there twice",
	} {
		if _, err := parseUsers([]byte(text)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: got %v", text, err)
		}
	}
	path := filepath.Join(t.TempDir(), "users")
	os.WriteFile(path, []byte("\"app\" \""+someVerifier+"\"\n"), 0o644)
	if _, err := readUsers(path); err == nil || !strings.Contains(err.Error(), "chmod o-rwx") {
		t.Errorf("a file that everybody can read: %v", err)
	}
	os.Chmod(path, 0o640)
	if all, err := readUsers(path); err != nil || len(all) != 1 {
		t.Errorf("got %v, %v", all, err)
	}
	for _, other := range []string{path + "x", t.TempDir(), "/dev/zero"} {
		if _, err := readUsers(other); err == nil {
			t.Errorf("%s is read", other)
		}
	}
}

func FuzzUsers(f *testing.F) {
	f.Add([]byte("\"app\" \"" + someVerifier + "\"\n"))
	f.Add([]byte("\"a\"\"b\" \""))
	f.Fuzz(func(t *testing.T, text []byte) {
		if all, err := parseUsers(text); (len(all) == 0) != (err != nil) {
			t.Errorf("%d users, %v", len(all), err)
		}
	})
}

func TestRulesForFunctionsElsewhere(t *testing.T) {
	uri, _ := url.Parse("spiffe://example.org/fn")
	cn := func(name string) pkix.AttributeTypeAndValue {
		return pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: name}
	}
	one := &x509.Certificate{Subject: pkix.Name{CommonName: "fn", Organization: []string{"Example"}, Names: []pkix.AttributeTypeAndValue{cn("fn")}}, URIs: []*url.URL{uri}}
	two := &x509.Certificate{Subject: pkix.Name{CommonName: "fn", Names: []pkix.AttributeTypeAndValue{cn("other"), cn("fn")}}}
	zero := uint32(0)
	nobody := uint32(overflowID)
	for name, c := range map[string]struct {
		rules []config.Rule
		cert  *x509.Certificate
		want  bool
	}{
		"no rule":                     {nil, one, false},
		"any":                         {[]config.Rule{{Any: true}}, nil, true},
		"common name":                 {[]config.Rule{{CertCN: "fn"}}, one, true},
		"another common name":         {[]config.Rule{{CertCN: "fm"}}, one, false},
		"two common names":            {[]config.Rule{{CertCN: "fn"}}, two, false},
		"no certificate":              {[]config.Rule{{CertCN: "fn"}}, nil, false},
		"distinguished name":          {[]config.Rule{{CertDN: "CN=fn,O=Example"}}, one, true},
		"a part of it":                {[]config.Rule{{CertDN: "CN=fn"}}, one, false},
		"URI":                         {[]config.Rule{{CertURI: "spiffe://example.org/fn"}}, one, true},
		"another URI":                 {[]config.Rule{{CertURI: "spiffe://example.org/fn2"}}, one, false},
		"both must match":             {[]config.Rule{{CertCN: "fn", CertURI: "x"}}, one, false},
		"root of this host":           {[]config.Rule{{UID: &zero}}, one, false},
		"the id that it shows":        {[]config.Rule{{UID: &nobody}, {GID: &nobody}}, one, false},
		"a uid beside the right name": {[]config.Rule{{UID: &zero, CertCN: "fn"}}, one, false},
	} {
		a, err := newAccess(0, c.rules)
		if err != nil {
			t.Fatal(err)
		}
		p := newRemote(netip.MustParseAddrPort("[::ffff:192.0.2.1]:1024"))
		if c.cert != nil {
			c.cert.SerialNumber = new(big.Int)
			p.proved(c.cert, "")
		}
		if got := a.allows(p); got != c.want {
			t.Errorf("%s: allowed %v", name, got)
		}
		if p.holder().address != netip.MustParseAddr("192.0.2.1") {
			t.Errorf("it is counted as %v", p.holder())
		}
	}
	local := Peer{UID: 7}
	if r := (rule{certCN: "fn"}); r.matches(&local) {
		t.Error("a function of this host matches a certificate's name")
	}
}
