package proxy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/proxy/config"
)

// fetchSoon fails the test instead of waiting for a fetch that does not return.
func fetchSoon(t *testing.T, from config.Password) (passwords, error) {
	t.Helper()
	type result struct {
		p   passwords
		err error
	}
	done := make(chan result, 1)
	go func() { // ends with the fetch, or with the test binary
		p, err := (&passwordSource{from: from, database: "orders", user: "app"}).fetch(t.Context())
		done <- result{p, err}
	}()
	select {
	case r := <-done:
		return r.p, r.err
	case <-time.After(10 * time.Second):
		t.Fatalf("%+v: the fetch does not return", from)
		return passwords{}, nil
	}
}

func TestPasswordFileThatIsNoRegularFileIsRefusedAtOnce(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, "/dev/zero", t.TempDir()} {
		for _, from := range []config.Password{{File: path}, {Passfile: path}} {
			_, err := fetchSoon(t, from)
			var credential *credentialError
			if !errors.As(err, &credential) || !strings.Contains(err.Error(), "not a regular file") {
				t.Errorf("%+v: got %v", from, err)
			}
		}
	}
}

func TestPasswordFileMayBeALinkAndHasABound(t *testing.T) {
	dir := t.TempDir()
	long, link := filepath.Join(dir, "long"), filepath.Join(dir, "link")
	os.WriteFile(filepath.Join(dir, "file"), []byte("from file\r\n"), 0o600)
	os.WriteFile(long, []byte(strings.Repeat("hush", maxPassfile)), 0o600)
	os.Symlink("file", link) // as Kubernetes mounts secrets
	if p, err := fetchSoon(t, config.Password{File: link}); err != nil || p.of(config.Server{}).Reveal() != "from file" {
		t.Errorf("got %v", err)
	}
	for _, from := range []config.Password{{File: long}, {Passfile: long}} {
		if _, err := fetchSoon(t, from); err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("%+v: got %v", from, err)
		}
	}
}

func TestPassfileIsReadAtEachFetchAndSearchedForEachServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pass")
	s := passwordSource{from: config.Password{Passfile: path}, database: "orders", user: "app"}
	if _, err := s.fetch(t.Context()); err == nil {
		t.Error("a passfile that is gone is no error")
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# comment\na:5432:other:app:wrong\na:5432:orders:app:for a\nb:*:*:app:for b\n/run/pg:5432:*:*:for the folder\nlocalhost:5432:*:*:for a socket\n")
	p, err := s.fetch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for server, want := range map[string]string{"a": "for a", "a:6000": "", "b:6000": "for b", "c": "", "/run/pg": "for the folder", "/tmp": "for a socket"} {
		parsed, err := config.ParseServer(server)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.of(parsed).Reveal(); got != want {
			t.Errorf("%s: got %q, want %q", server, got, want)
		}
	}
	if printed := fmt.Sprintf("%v %+v %#v", p, p, p); strings.Contains(printed, "for a") {
		t.Errorf("printed %s", printed)
	}
	write("*:*:*:*:rotated\n")
	if p, err := s.fetch(t.Context()); err != nil || p.of(config.Server{Host: "a", Port: 5432}).Reveal() != "rotated" {
		t.Errorf("after a change: %v", err)
	}
	os.Chmod(path, 0o640)
	if _, err := s.fetch(t.Context()); err == nil || !strings.Contains(err.Error(), "chmod 0600") {
		t.Errorf("open to a group: got %v", err)
	}
}

func TestDiallerSearchesThePassfileByItsRoute(t *testing.T) {
	for database, want := range map[string]string{"": "orders", "shop": "shop"} {
		cfg := config.Route{Servers: []string{"db"}, Database: database, User: "app", Password: config.Password{Passfile: "/p"}, TLS: config.TLS{Mode: "disable", Negotiation: "postgres"}}
		d, err := newDialler(t.Context(), "orders", cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		if d.password.database != want || d.password.user != "app" {
			t.Errorf("database %q: searched by %q, %q", database, d.password.database, d.password.user)
		}
	}
}

func TestForgottenPasswordIsAskedForAnew(t *testing.T) {
	count := filepath.Join(t.TempDir(), "count")
	s := passwordSource{from: config.Password{Command: []string{"/bin/sh", "-c", "echo x >> " + count + "; wc -l < " + count},
		Timeout: config.Duration(10 * time.Second), Cache: config.Duration(time.Hour)}}
	for i, want := range []string{"1", "1", "2", "2"} {
		if i == 2 {
			s.forget()
		}
		if p, err := s.fetch(t.Context()); err != nil || strings.TrimSpace(p.of(config.Server{}).Reveal()) != want {
			t.Errorf("fetch %d: %v", i, err)
		}
	}
}

// What a failing command says is in the error, in one line and without the token.
func TestComplaintOfAFailingCommandIsKept(t *testing.T) {
	fails := func(script string) string {
		s := passwordSource{from: config.Password{Command: []string{"/bin/sh", "-c", script}, Timeout: config.Duration(10 * time.Second)}}
		_, err := s.fetch(t.Context())
		if err == nil {
			t.Fatalf("%s succeeds", script)
		}
		return err.Error()
	}
	if got := fails(`echo token-123; printf 'expired:\n\ttoken-123 of app\n' >&2; exit 3`); got != "password: command /bin/sh: exit status 3: expired: [redacted] of app" {
		t.Errorf("got %q", got)
	}
	if got := fails(`yes noise | head -c 100000 >&2; echo the reason >&2; exit 1`); len(got) > 600 || !strings.HasSuffix(got, "the reason") {
		t.Errorf("got %d bytes: %q", len(got), got)
	}
	if got := fails(`exit 1`); got != "password: command /bin/sh: exit status 1" {
		t.Errorf("got %q", got)
	}
}
