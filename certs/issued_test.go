package certs_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pghandoff/certs"
)

// authority signs with a development CA, as long as it is not down.
type authority struct {
	ca    *certs.DevCA
	now   func() time.Time
	ttl   time.Duration
	down  error
	asked int
}

func (a *authority) Issue(_ context.Context, request []byte) ([]byte, error) {
	a.asked++
	if a.down != nil {
		return nil, a.down
	}
	return a.ca.SignRequest(request, a.now(), a.ttl)
}

func newAuthority(t *testing.T, now func() time.Time) *authority {
	ca, err := certs.NewDevCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &authority{ca: ca, now: now, ttl: 30 * time.Minute}
}

func TestIssuedCertificateIsKeptAndRenewedInTime(t *testing.T) {
	now := time.Now()
	a := newAuthority(t, func() time.Time { return now })
	source := certs.IssuedSource{CommonName: "app", Names: []string{"fn.example.com", "192.0.2.1", "spiffe://example.com/app"}, Dir: filepath.Join(t.TempDir(), "kept"), Issuer: a}
	id := certs.NewIdentity("i", source)
	load := func(wantAsked int, wantGeneration uint64, wantErr string) {
		t.Helper()
		_, err := id.Reload(t.Context(), now)
		if (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Fatalf("got %v, want %q", err, wantErr)
		}
		if s := id.Current(); a.asked != wantAsked || s.Generation != wantGeneration || s.Check(now) != nil {
			t.Fatalf("asked %d times, generation %d, %v", a.asked, s.Generation, s.Check(now))
		}
	}
	load(1, 1, "")
	s := id.Current()
	if s.Leaf.DNSNames[0] != "fn.example.com" || len(s.Leaf.IPAddresses) != 1 || len(s.Leaf.URIs) != 1 || s.Leaf.Subject.CommonName != "app" {
		t.Errorf("issued for %v", s.Leaf.Subject)
	}
	now = now.Add(19 * time.Minute)
	load(1, 1, "")
	restarted := certs.NewIdentity("i", source)
	if _, err := restarted.Reload(t.Context(), now); err != nil || a.asked != 1 || restarted.Current().Serial() != s.Serial() {
		t.Errorf("after a restart: asked %d times, %v", a.asked, err)
	}
	now = now.Add(2 * time.Minute)
	a.down = errors.New("the authority is down")
	load(2, 1, "the authority is down") // told, and what is kept goes on
	a.down = nil
	load(3, 2, "")
	file := filepath.Join(source.Dir, "identity.pem")
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	os.WriteFile(file, []byte("torn"), 0o600)
	load(4, 3, "")
	os.WriteFile(file, nil, 0o600)
	a.down = errors.New("the authority is down")
	if _, err := certs.NewIdentity("i", source).Reload(t.Context(), now); err == nil || !strings.Contains(err.Error(), "the authority is down") {
		t.Errorf("with nothing kept: %v", err)
	}
}

func TestIssuerThatAnswersSomethingElseIsRefused(t *testing.T) {
	now := time.Now()
	a := newAuthority(t, func() time.Time { return now })
	other, err := a.ca.IssueClient("somebody-else", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		answer func(request []byte) []byte
		want   string
	}{
		"nothing":             {func([]byte) []byte { return nil }, "no PEM block"},
		"noise":               {func([]byte) []byte { return []byte("hello") }, ""},
		"another certificate": {func([]byte) []byte { return other.ChainPEM }, "does not belong"},
		"a chain that is cut": {func(request []byte) []byte {
			chain, _ := a.ca.SignRequest(request, now, time.Hour)
			return append(chain, a.ca.RootsPEM()[:200]...)
		}, "cut off"},
		"the root instead": {func([]byte) []byte { return a.ca.RootsPEM() }, "does not belong"},
	} {
		source := certs.IssuedSource{CommonName: "app", Dir: t.TempDir(), Issuer: issuerFunc(c.answer)}
		m, err := source.Load(t.Context(), now)
		if m != nil || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v", name, m, err)
		}
		if left, _ := os.ReadDir(source.Dir); len(left) > 1 {
			t.Errorf("%s: kept %v", name, left)
		}
	}
}

type issuerFunc func(request []byte) []byte

func (f issuerFunc) Issue(_ context.Context, request []byte) ([]byte, error) { return f(request), nil }

// signEnv makes this program sign, as an exec issuer's: with the CA in that folder.
const signEnv = "PGHANDOFF_TEST_SIGN"

func TestMain(m *testing.M) {
	dir := os.Getenv(signEnv)
	if dir == "" {
		os.Exit(m.Run())
	}
	request, _ := io.ReadAll(os.Stdin)
	ca, err := certs.OpenDevCA(dir, time.Now())
	if err == nil {
		var chain []byte
		if chain, err = ca.SignRequest(request, time.Now(), time.Hour); err == nil {
			os.Stdout.Write(chain)
			os.Exit(0)
		}
	}
	os.Stderr.WriteString("first line\nno signature: " + err.Error() + "\n")
	os.Exit(1)
}

func TestProgramSigns(t *testing.T) {
	t.Setenv(signEnv, t.TempDir())
	issuer := certs.ExecIssuer{Command: []string{os.Args[0]}}
	m, err := certs.IssuedSource{CommonName: "app", Dir: t.TempDir(), Issuer: issuer}.Load(t.Context(), time.Now())
	if err != nil || m == nil {
		t.Fatal(err)
	}
	if _, err := issuer.Issue(t.Context(), []byte("no request")); err == nil || !strings.Contains(err.Error(), "no signature: not a certificate request") || strings.Contains(err.Error(), "first line") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := (certs.ExecIssuer{Command: []string{"/bin/sleep", "60"}}).Issue(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a program that hangs: %v", err)
	}
	if _, err := (certs.ExecIssuer{Command: []string{"/bin/sh", "-c", "yes"}}).Issue(t.Context(), nil); err == nil {
		t.Error("a program that prints without end is accepted")
	}
}

// vault is a stub of Vault's API that checks what it is asked.
func vault(t *testing.T, ca *certs.DevCA) *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var ask map[string]string
		json.NewDecoder(r.Body).Decode(&ask)
		refuse := func(status int, sentence string) {
			w.WriteHeader(status)
			json.NewEncoder(w).Encode(map[string][]string{"errors": {sentence}})
		}
		switch {
		case r.URL.Path == "/v1/auth/kubernetes/login" && ask["role"] == "pghandoff" && ask["jwt"] == "jwt-of-the-pod":
			json.NewEncoder(w).Encode(map[string]any{"auth": map[string]string{"client_token": "token-of-the-pod"}})
		case r.URL.Path != "/v1/pki/sign/db" || r.Method != http.MethodPost:
			refuse(http.StatusNotFound, "no handler for route")
		case !strings.HasPrefix(r.Header.Get("X-Vault-Token"), "token-"):
			refuse(http.StatusForbidden, "permission denied")
		case ask["common_name"] != "app" || ask["ttl"] != "3600s":
			refuse(http.StatusBadRequest, "common name not allowed by this role")
		default:
			chain, err := ca.SignRequest([]byte(ask["csr"]), time.Now(), time.Hour)
			if err != nil {
				refuse(http.StatusBadRequest, err.Error())
				return
			}
			json.NewEncoder(w).Encode(map[string]any{"data": map[string]any{"certificate": string(chain), "ca_chain": []string{string(ca.RootsPEM())}, "issuing_ca": string(ca.RootsPEM())}})
		}
	}))
}

func TestVaultSigns(t *testing.T) {
	a := newAuthority(t, time.Now)
	stub := vault(t, a.ca)
	defer stub.Close()
	dir := t.TempDir()
	token, jwt := filepath.Join(dir, "token"), filepath.Join(dir, "jwt")
	os.WriteFile(token, []byte("token-1\n"), 0o600)
	os.WriteFile(jwt, []byte("jwt-of-the-pod"), 0o600)
	good := certs.VaultIssuer{Address: stub.URL + "/", Mount: "pki", Role: "db", CommonName: "app", TTL: time.Hour, TokenFile: token}
	for name, c := range map[string]struct {
		change func(*certs.VaultIssuer)
		want   string // empty: a certificate
	}{
		"token": {func(*certs.VaultIssuer) {}, ""},
		"Kubernetes": {func(v *certs.VaultIssuer) {
			v.KubernetesRole, v.KubernetesMount, v.KubernetesTokenFile = "pghandoff", "kubernetes", jwt
		}, ""},
		"other role": {func(v *certs.VaultIssuer) { v.Role = "web" }, "404 Not Found to /v1/pki/sign/web: no handler for route"},
		"other name": {func(v *certs.VaultIssuer) { v.CommonName = "root" }, "common name not allowed"},
		"no token":   {func(v *certs.VaultIssuer) { v.TokenFile = token + "x" }, "no such file"},
		"wrong login": {func(v *certs.VaultIssuer) {
			v.KubernetesRole, v.KubernetesMount, v.KubernetesTokenFile = "x", "kubernetes", jwt
		}, "no handler"},
		"not there":    {func(v *certs.VaultIssuer) { v.Address = "http://127.0.0.1:1" }, "refused"},
		"other anchor": {func(v *certs.VaultIssuer) { v.RootsFile = token }, "token"},
	} {
		issuer := good
		c.change(&issuer)
		m, err := certs.IssuedSource{CommonName: "app", Dir: t.TempDir(), Issuer: issuer}.Load(t.Context(), time.Now())
		if (m != nil) != (c.want == "") || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, %v", name, m, err)
		}
		if err != nil && (strings.Contains(err.Error(), "token-1") || strings.Contains(err.Error(), "jwt-of")) {
			t.Errorf("%s: the error shows a token: %v", name, err)
		}
	}
}
