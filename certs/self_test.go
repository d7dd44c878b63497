package certs_test

import (
	"encoding/json"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"crypto/ecdsa"

	"pghandoff/certs"
)

func TestDevelopmentIdentitySurvivesRestartsAndRenews(t *testing.T) {
	now := time.Now()
	source := certs.SelfSource{CommonName: "app", Dir: filepath.Join(t.TempDir(), "self"), Lifetime: 3 * time.Hour}
	load := func(at time.Time) *certs.Snapshot {
		t.Helper()
		id := certs.NewIdentity("self", source)
		if _, err := id.Reload(t.Context(), at); err != nil {
			t.Fatal(err)
		}
		return id.Current()
	}
	first, again, renewed := load(now), load(now.Add(time.Hour)), load(now.Add(2*time.Hour+time.Minute))
	if first.Digest != again.Digest {
		t.Error("a restart issued a new certificate")
	}
	if first.Digest == renewed.Digest || !renewed.Trusts(first.Anchors[0]) {
		t.Error("not renewed in the last third, or by another CA")
	}
	info, err := os.Stat(source.Dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("folder: %v, %v", info.Mode(), err)
	}
	info, err = os.Stat(filepath.Join(source.Dir, "ca.key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key: %v, %v", info.Mode(), err)
	}
	source.CommonName = "other"
	if got := load(now).Leaf.Subject.CommonName; got != "other" {
		t.Errorf("common name %q", got)
	}
}

func TestOneFolderServesManyProcesses(t *testing.T) {
	source := certs.SelfSource{CommonName: "app", Dir: t.TempDir()}
	var wg sync.WaitGroup
	serials := make([]string, 8)
	for i := range serials {
		wg.Go(func() {
			id := certs.NewIdentity("self", source)
			if _, err := id.Reload(t.Context(), time.Now()); err != nil {
				t.Error(err)
				return
			}
			serials[i] = id.Current().Serial()
		})
	}
	wg.Wait()
	for _, s := range serials {
		if s != serials[0] {
			t.Errorf("serials differ: %v", serials)
		}
	}
}

// Nothing that holds a key may print it, whichever way Go prints.
func TestKeysAreNeverPrinted(t *testing.T) {
	s := newSet(t)
	id := certs.NewIdentity("orders-client", s.source)
	mustReload(t, id, s, true)
	snap := id.Current()
	material, err := s.source.Load(t.Context(), s.now)
	if err != nil {
		t.Fatal(err)
	}
	issued, err := s.ca.IssueClient("app", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]any{
		"Snapshot": *snap, "*Snapshot": snap, "Material": *material, "*Material": material, "DevCA": *s.ca, "*DevCA": s.ca,
		"Issued": *issued, "*Issued": issued, "PEMSet": certs.PEMSet{Key: s.key}, "in a struct": struct{ S any }{snap},
		"in a slice": []any{snap, issued}, "*Identity": id,
	}
	secrets := []string{string(s.key), string(s.key[40:80])}
	for _, key := range []any{snap.Certificate.PrivateKey, issued.Certificate.PrivateKey} {
		raw, err := key.(*ecdsa.PrivateKey).Bytes()
		if err != nil {
			t.Fatal(err)
		}
		d := new(big.Int).SetBytes(raw)
		secrets = append(secrets, d.String(), d.Text(16), strings.Trim(fmt.Sprint(raw), "[]"))
	}
	for name, v := range values {
		var printed []string
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%T"} {
			printed = append(printed, fmt.Sprintf(verb, v))
		}
		text, err := json.Marshal(v)
		printed = append(printed, fmt.Sprint(v), fmt.Sprintln(v), string(text), fmt.Sprint(err))
		for _, p := range printed {
			for _, secret := range secrets {
				if strings.Contains(p, secret) {
					t.Errorf("%s prints its key: %s", name, p)
				}
			}
		}
	}
}
