package main

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestServeTellsATakenFolderFromAWrongConfiguration(t *testing.T) {
	dir := t.TempDir()
	runDir, control := filepath.Join(dir, "run"), filepath.Join(dir, "run.control")
	t.Setenv("HOME", dir)
	os.Mkdir(control, 0o700)
	lock, err := os.Create(filepath.Join(control, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		want int
	}{
		"a daemon is running":      {[]string{"serve", "--run-dir", runDir, "postgres://app@db/orders"}, exitFailed},
		"control below run":        {[]string{"serve", "--run-dir", runDir, "--control-dir", runDir + "/c", "postgres://app@db/orders"}, exitUsage},
		"a file that is not there": {[]string{"serve", "--run-dir", runDir + "2", "postgres://app@db/orders?sslrootcert=/nonexistent"}, exitUsage},
	} {
		if got := run(t.Context(), c.args); got != c.want {
			t.Errorf("%s: exit code %d, want %d", name, got, c.want)
		}
	}
}
