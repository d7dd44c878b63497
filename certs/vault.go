package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// VaultIssuer lets HashiCorp Vault's PKI engine sign (POST /v1/MOUNT/sign/ROLE). The token is read anew for each request,
// from a file, or had by the Kubernetes auth method with the service account's token.
type VaultIssuer struct {
	Address    string // https://vault.example.com:8200
	Mount      string // of the PKI engine, such as "pki"
	Role       string
	CommonName string
	TTL        time.Duration // of the certificate; zero: the role's
	Namespace  string        // of Vault Enterprise; empty: none

	TokenFile string // of a Vault token, as an agent keeps it
	// KubernetesRole is the role to log in as instead, with the token in KubernetesTokenFile, at KubernetesMount.
	KubernetesRole, KubernetesTokenFile, KubernetesMount string

	RootsFile string // PEM of the anchors for Vault's own certificate, read anew for each request; empty: the system's
}

// Issue asks Vault. Errors have Vault's own sentences, and no token.
func (v VaultIssuer) Issue(ctx context.Context, request []byte) ([]byte, error) {
	roots, err := v.roots()
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return errors.New("vault answers with a redirect, which the token does not follow: name the address that it points to")
	}}
	token, err := v.token(ctx, client)
	if err != nil {
		return nil, err
	}
	ask := map[string]string{"csr": string(request), "common_name": v.CommonName, "format": "pem"}
	if v.TTL > 0 {
		ask["ttl"] = fmt.Sprintf("%ds", int(v.TTL.Seconds()))
	}
	var answer struct {
		Data struct {
			Certificate string   `json:"certificate"`
			CAChain     []string `json:"ca_chain"`
			IssuingCA   string   `json:"issuing_ca"`
		} `json:"data"`
	}
	if err := v.post(ctx, client, "/v1/"+v.Mount+"/sign/"+url.PathEscape(v.Role), token, ask, &answer); err != nil {
		return nil, err
	}
	return vaultChain(answer.Data.Certificate, answer.Data.CAChain, answer.Data.IssuingCA)
}

func (v VaultIssuer) roots() (*x509.CertPool, error) {
	if v.RootsFile == "" {
		return nil, nil
	}
	data, err := readFile(v.RootsFile, v.RootsFile, maxFileSize, false)
	if err != nil {
		return nil, err
	}
	anchors, err := parseCertificates(v.RootsFile, data)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	for _, c := range anchors {
		pool.AddCert(c)
	}
	return pool, nil
}

// vaultChain puts the answer's parts into the order of a chain, without what is self-signed: nobody is sent that.
func vaultChain(leaf string, chain []string, issuer string) ([]byte, error) {
	if len(chain) == 0 && issuer != "" {
		chain = []string{issuer}
	}
	out := []byte(strings.TrimSpace(leaf) + "\n")
	for _, text := range chain {
		parsed, err := parseCertificates("ca_chain", []byte(text))
		if err != nil {
			return nil, err
		}
		for _, c := range parsed {
			if c.CheckSignatureFrom(c) != nil {
				out = append(out, certificatePEM(c.Raw)...)
			}
		}
	}
	return out, nil
}

// token returns the token for a request.
func (v VaultIssuer) token(ctx context.Context, client *http.Client) (string, error) {
	if v.KubernetesRole == "" {
		return readToken(v.TokenFile)
	}
	jwt, err := readToken(v.KubernetesTokenFile)
	if err != nil {
		return "", err
	}
	var answer struct {
		Auth struct {
			ClientToken string `json:"client_token"`
		} `json:"auth"`
	}
	err = v.post(ctx, client, "/v1/auth/"+v.KubernetesMount+"/login", "", map[string]string{"role": v.KubernetesRole, "jwt": jwt}, &answer)
	if err == nil && answer.Auth.ClientToken == "" {
		err = errors.New("vault's login answers without a token")
	}
	return answer.Auth.ClientToken, err
}

// readToken reads one line.
func readToken(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(data))
	if token == "" || len(token) > 64<<10 || strings.ContainsAny(token, "\n\r\x00") {
		return "", fmt.Errorf("%s does not hold one token in one line", path)
	}
	return token, nil
}

// post asks Vault for something and reads the answer.
func (v VaultIssuer) post(ctx context.Context, client *http.Client, path, token string, ask, answer any) error {
	body, err := json.Marshal(ask)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(v.Address, "/")+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Vault-Request", "true")
	if token != "" {
		r.Header.Set("X-Vault-Token", token)
	}
	if v.Namespace != "" {
		r.Header.Set("X-Vault-Namespace", v.Namespace)
	}
	response, err := client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxChain+1))
	switch {
	case err != nil:
		return fmt.Errorf("read vault's answer: %w", err)
	case len(text) > maxChain:
		return errors.New("vault's answer is too long")
	case response.StatusCode != http.StatusOK:
		var refusal struct{ Errors []string }
		_ = json.Unmarshal(text, &refusal) // without one the status says it
		return fmt.Errorf("vault answers %s to %s: %s", response.Status, path, strings.Join(refusal.Errors, "; "))
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("vault's answer is not the JSON that it should be: %w", err)
	}
	return nil
}
