package handoff

import (
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// findCommand returns the path of the program as a shell would: a name with a slash as it is, others on PATH. What
// exists but cannot be run is 126, what does not exist 127; a runnable file further down PATH wins over one that is not.
func findCommand(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		if err := runnable(name); err != nil {
			return "", commandError(name, err)
		}
		return name, nil
	}
	path, set := lookup(env, "PATH")
	if !set {
		path = "/usr/local/bin:/usr/bin:/bin"
	}
	var denied error
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			dir = "."
		}
		candidate := dir + "/" + name
		err := runnable(candidate)
		if err == nil {
			return candidate, nil
		}
		if denied == nil && exists(candidate) {
			denied = commandError(candidate, err)
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", exit(ExitNotFound, "%s: command not found on PATH", name)
}

// runnable makes the kernel's check, for the effective user.
func runnable(path string) error {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return unix.EACCES // a folder, most likely
	}
	return unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS)
}

// exists reports whether there is something by this name that can be seen: a folder on PATH that may not be searched
// counts as empty, as for a shell.
func exists(path string) bool {
	var stat unix.Stat_t
	return unix.Stat(path, &stat) == nil
}

func notFound(err error) bool { return err == unix.ENOENT || err == unix.ENOTDIR }

func commandError(path string, err error) *ExitError {
	if notFound(err) {
		return exit(ExitNotFound, "%s: no such file", path)
	}
	return exit(ExitNotRunnable, "%s cannot be run: %w", path, err)
}
