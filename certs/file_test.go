package certs_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"pghandoff/certs"
)

func TestKeyFileOpenToOthersIsRefused(t *testing.T) {
	for mode, wanted := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o644: false, 0o604: false, 0o660: false,
		0o640: os.Geteuid() == 0} {
		s := newSet(t)
		if err := os.Chmod(s.source.Key, mode); err != nil {
			t.Fatal(err)
		}
		_, err := s.source.Load(t.Context(), s.now)
		if wanted && err != nil {
			t.Errorf("mode %04o: %v", mode, err)
		}
		if !wanted {
			checkRefusal(t, err, certs.Exposed, "chmod 0600 "+s.source.Key)
		}
	}
}

func TestKeyFileOfAnotherUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("giving a file away needs root: run this test as root")
	}
	s := newSet(t)
	if err := os.Chown(s.source.Key, 12345, -1); err != nil {
		t.Fatal(err)
	}
	_, err := s.source.Load(t.Context(), s.now)
	checkRefusal(t, err, certs.Exposed, "belongs to uid 12345")
}

func TestOnlyRegularFilesAreRead(t *testing.T) {
	s := newSet(t)
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, filepath.Dir(pipe)} {
		s.source.Key = path
		_, err := s.source.Load(t.Context(), s.now)
		checkRefusal(t, err, certs.Unreadable, "not a regular file")
	}
	s.source.Key = filepath.Join(filepath.Dir(pipe), "absent")
	_, err := s.source.Load(t.Context(), s.now)
	checkRefusal(t, err, certs.Unreadable, "no such file")
}

// A Kubernetes volume: tls.crt → ..data/tls.crt, ..data → a folder that a new set replaces by renaming a new link.
func TestKubernetesVolumeIsReadBehindOneLink(t *testing.T) {
	s := newSet(t)
	volume := t.TempDir()
	fill := func(version string, from *set) {
		dir := filepath.Join(volume, version)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, "tls.crt"), from.cert, 0o644)
		writeFile(t, filepath.Join(dir, "tls.key"), from.key, 0o400)
		writeFile(t, filepath.Join(dir, "ca.crt"), from.roots, 0o644)
		if err := os.Symlink(version, filepath.Join(volume, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(volume, "..data_tmp"), filepath.Join(volume, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	fill("..2026_11_30", s)
	for _, name := range []string{"tls.crt", "tls.key", "ca.crt"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(volume, name)); err != nil {
			t.Fatal(err)
		}
	}
	id := certs.NewIdentity("volume", certs.FileSource{Cert: filepath.Join(volume, "tls.crt"),
		Key: filepath.Join(volume, "tls.key"), Roots: filepath.Join(volume, "ca.crt")})
	mustReload(t, id, s, true)
	fill("..2026_12_01", newSet(t))
	mustReload(t, id, s, true)
	mustReload(t, id, s, false)
	if got := id.Current().Generation; got != 2 {
		t.Errorf("generation %d, want 2", got)
	}
}

func mustReload(t *testing.T, id *certs.Identity, s *set, want bool) {
	t.Helper()
	if changed, err := id.Reload(t.Context(), s.now); err != nil || changed != want {
		t.Errorf("changed %v, error %v; want %v", changed, err, want)
	}
}

func TestBadSetKeepsTheOldOne(t *testing.T) {
	s := newSet(t)
	id := certs.NewIdentity("orders-client", s.source)
	mustReload(t, id, s, true)
	old := id.Current()
	good := s.key
	s.key = newSet(t).key
	s.write()
	_, err := id.Reload(t.Context(), s.now)
	checkRefusal(t, err, certs.Mismatched, `identity "orders-client": `)
	if id.Current() != old {
		t.Error("a bad set replaced the snapshot")
	}
	s.key = good
	s.write()
	mustReload(t, id, s, false)
}

func TestCandidateIsNotCurrentUntilPublished(t *testing.T) {
	s := newSet(t)
	id := certs.NewIdentity("orders-client", s.source)
	id.ContinueFrom(41)
	first, err := id.Candidate(t.Context(), s.now)
	if err != nil {
		t.Fatal(err)
	}
	if first.Generation != 42 || id.Current() != nil {
		t.Errorf("generation %d, current %v", first.Generation, id.Current())
	}
	second := newSet(t)
	s.cert, s.key = second.cert, second.key
	s.write()
	newer, err := id.Candidate(t.Context(), s.now)
	if err != nil {
		t.Fatal(err)
	}
	if !id.Publish(newer) || id.Publish(first) || id.Current() != newer {
		t.Error("an older candidate replaced a newer one")
	}
	if same, err := id.Candidate(t.Context(), s.now); err != nil || same != newer {
		t.Errorf("same bytes gave another snapshot: %v, %v", same, err)
	}
}
