package throwaway_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/tests/testpg"
)

// A Maven repository with one artefact: a jar (a zip) that holds a .txz with programs in bin/.
func repository(t *testing.T, programs map[string]string, spoil bool) (url string, jars *atomic.Int32) {
	t.Helper()
	var archive, jar bytes.Buffer
	w := tar.NewWriter(&archive)
	for name, text := range programs {
		if err := w.WriteHeader(&tar.Header{Name: "bin/" + name, Mode: 0o755, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	xz := exec.Command(testpg.Require(t, "xz", "xz-utils"), "-c")
	xz.Stdin = &archive
	packed, err := xz.Output()
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(&jar)
	entry, err := z.Create("postgres-linux-x86_64.txz")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := entry.Write(packed); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	jars = new(atomic.Int32)
	sum := sha256.Sum256(jar.Bytes())
	if spoil {
		sum[0]++
	}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/maven2/io/zonky/test/postgres/embedded-postgres-binaries-") {
			http.NotFound(rw, r)
		} else if strings.HasSuffix(r.URL.Path, ".sha256") {
			_, _ = fmt.Fprintf(rw, "%x", sum)
		} else {
			jars.Add(1)
			_, _ = rw.Write(jar.Bytes())
		}
	}))
	t.Cleanup(server.Close)
	return server.URL + "/maven2", jars
}

// fetchFrom fetches into an empty cache.
func fetchFrom(t *testing.T, url string) (string, error) {
	t.Helper()
	t.Setenv(throwaway.RepositoryEnv, url)
	t.Setenv("PGHANDOFF_PG_CACHE", t.TempDir())
	return throwaway.Fetch(t.Context())
}

func TestProgramsAreFetchedOnce(t *testing.T) {
	script := "#!/bin/sh\nexit 1\n"
	url, jars := repository(t, map[string]string{"initdb": script, "postgres": script, "pg_ctl": script}, false)
	first, err := fetchFrom(t, url)
	if err != nil {
		t.Fatal(err)
	}
	second, err := throwaway.Fetch(t.Context())
	if err != nil || second != first || jars.Load() != 1 {
		t.Errorf("second fetch: %s, %v, %d downloads", second, err, jars.Load())
	}
	if info, err := os.Stat(filepath.Join(first, "postgres")); err != nil || info.Mode().Perm()&0o100 == 0 {
		t.Errorf("postgres: %v, %v", info, err)
	}
}

func TestSpoiltDownloadIsRefused(t *testing.T) {
	url, _ := repository(t, map[string]string{"initdb": "", "postgres": "", "pg_ctl": ""}, true)
	if _, err := fetchFrom(t, url); err == nil || !strings.Contains(err.Error(), "checksum") {
		t.Errorf("got %v", err)
	}
}

func TestProgramsNamedByEnvironmentMustExist(t *testing.T) {
	t.Setenv(throwaway.BinEnv, t.TempDir())
	if _, err := throwaway.FindPrograms(t.Context()); err == nil || !strings.Contains(err.Error(), "has no initdb") {
		t.Errorf("got %v", err)
	}
}
