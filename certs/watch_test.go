package certs_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pghandoff/certs"
)

// watched runs a watcher and gives what a file holds each time that it calls.
func watched(t *testing.T, path string, w certs.Watcher) (read func(want string, within time.Duration)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	calls, done := make(chan string, 1000), make(chan struct{})
	w.Paths = []string{path}
	go func() { // ended by cancel; waited for below
		defer close(done)
		w.Run(ctx, func() {
			text, _ := os.ReadFile(path)
			calls <- string(text)
		}, func(err error) { t.Error(err) })
	}()
	t.Cleanup(func() { cancel(); <-done })
	return func(want string, within time.Duration) {
		t.Helper()
		limit := time.After(within)
		for {
			select {
			case got := <-calls:
				if got == want {
					return
				}
			case <-limit:
				t.Fatalf("%q was not told within %v", want, within)
			}
		}
	}
}

func replace(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestWatcherTellsWhateverWayAFileChanges(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "certs")
	os.Mkdir(dir, 0o700)
	path := filepath.Join(dir, "tls.crt")
	replace(t, path, "first")
	// The polls are so rare that only events can be quick, except where a folder is replaced.
	read := watched(t, path, certs.Watcher{Poll: 400 * time.Millisecond, Settle: 10 * time.Millisecond})
	read("first", time.Second)
	replace(t, path, "renamed over")
	read("renamed over", 300*time.Millisecond)
	os.WriteFile(path, []byte("in place"), 0o600)
	read("in place", 300*time.Millisecond)
	os.Remove(path)
	read("", 300*time.Millisecond)
	replace(t, path, "there again")
	read("there again", 300*time.Millisecond)

	other := filepath.Join(root, "other")
	os.Mkdir(other, 0o700)
	replace(t, filepath.Join(other, "tls.crt"), "other folder")
	os.Rename(dir, filepath.Join(root, "old"))
	os.Rename(other, dir)
	read("other folder", 5*time.Second)
	replace(t, path, "in the other folder")
	read("in the other folder", 5*time.Second)
	os.RemoveAll(dir)
	read("", 5*time.Second)
	os.Mkdir(dir, 0o700)
	replace(t, path, "made anew")
	read("made anew", 5*time.Second)
}

func TestWatcherFollowsTheLinkOfAKubernetesVolume(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"one", "two"} {
		os.Mkdir(filepath.Join(dir, name), 0o700)
		os.WriteFile(filepath.Join(dir, name, "tls.crt"), []byte(name), 0o600)
	}
	os.Symlink("one", filepath.Join(dir, "..data"))
	path := filepath.Join(dir, "tls.crt")
	os.Symlink("..data/tls.crt", path)
	read := watched(t, path, certs.Watcher{Poll: time.Hour, Settle: 10 * time.Millisecond})
	read("one", time.Second)
	os.Symlink("two", filepath.Join(dir, "..data_tmp"))
	os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))
	read("two", 2*time.Second)
}

// A writer that never stops does not keep the watcher from telling.
func TestWatcherTellsAmidEndlessEvents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tls.crt")
	replace(t, path, "x")
	calls := make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go certs.Watcher{Paths: []string{path}, Poll: time.Hour, Settle: 50 * time.Millisecond, Most: 200 * time.Millisecond}.Run(ctx, func() { calls <- struct{}{} }, func(error) {}) // ended by cancel
	<-calls
	writes := time.NewTicker(10 * time.Millisecond)
	defer writes.Stop()
	limit := time.After(5 * time.Second)
	for told := 0; told < 3; {
		select {
		case <-writes.C:
			os.WriteFile(path, []byte("y"), 0o600)
		case <-calls:
			told++
		case <-limit:
			t.Fatal("it was not told")
		}
	}
}
