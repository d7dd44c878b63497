package throwaway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// RepositoryEnv names the environment variable with the base URL of a Maven repository to fetch PostgreSQL from, instead
// of Maven Central.
const RepositoryEnv = "PGHANDOFF_PG_REPOSITORY"

const fetchedVersion = embeddedpostgres.V17

// fetch downloads PostgreSQL's programs (io.zonky.test.postgres on Maven) into the cache folder, once, and returns their
// bin folder. The library's only entry point also starts a server; since PostgreSQL does not start as root and the
// cluster here needs other settings anyway, it is given a data folder that cannot be started, and its error counts
// only if the programs are missing afterwards.
func fetch(ctx context.Context) (binDir string, err error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	unlock, err := lock(filepath.Join(cache, "lock"))
	if err != nil {
		return "", err
	}
	programs := filepath.Join(cache, "postgresql-"+string(fetchedVersion))
	complete := filepath.Join(programs, ".complete") // written last: a fetch that was interrupted starts anew
	if _, err := os.Stat(complete); err == nil {
		unlock()
		return filepath.Join(programs, "bin"), nil
	}
	done := make(chan error, 1)
	// The library knows no context. When ctx ends first, this goroutine goes on until the download ends, holding the
	// lock; nobody waits for it.
	go func() {
		defer unlock()
		done <- download(cache, programs, complete)
	}()
	select {
	case err := <-done:
		return filepath.Join(programs, "bin"), err
	case <-ctx.Done():
		return "", fmt.Errorf("fetch PostgreSQL: %w", ctx.Err())
	}
}

func download(cache, programs, complete string) error {
	if err := os.RemoveAll(programs); err != nil {
		return fmt.Errorf("clear %s: %w", programs, err)
	}
	scratch, err := os.MkdirTemp(cache, "unpack-")
	if err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	data := filepath.Join(scratch, "data")
	major, _, _ := strings.Cut(string(fetchedVersion), ".")
	if err := errors.Join(os.Mkdir(data, 0o700), os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte(major), 0o600)); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	config := embeddedpostgres.DefaultConfig().Version(fetchedVersion).Port(uint32(port)).Logger(io.Discard).
		CachePath(scratch).RuntimePath(filepath.Join(scratch, "run")).DataPath(data).BinariesPath(programs)
	if url := os.Getenv(RepositoryEnv); url != "" {
		config = config.BinaryRepositoryURL(strings.TrimSuffix(url, "/"))
	}
	logs := libraryLogs()
	server := embeddedpostgres.NewDatabase(config)
	startErr := server.Start()
	if startErr == nil {
		_ = server.Stop()
	}
	for _, path := range libraryLogs() {
		if !slices.Contains(logs, path) {
			_ = os.Remove(path) // the library leaves it behind
		}
	}
	if missing := missingProgram(filepath.Join(programs, "bin")); missing != "" {
		return fmt.Errorf("fetch PostgreSQL %s: %w", fetchedVersion, startErr)
	}
	if err := os.WriteFile(complete, nil, 0o644); err != nil {
		return fmt.Errorf("finish %s: %w", programs, err)
	}
	return nil
}

// libraryLogs returns the log files that the library has made among the temporary files.
func libraryLogs() []string {
	paths, _ := filepath.Glob(filepath.Join(os.TempDir(), "embedded_postgres_log*")) // the pattern is well formed
	return paths
}

// cacheDir returns a folder that the user who will run the programs can reach: for root that is not below /root.
func cacheDir() (string, error) {
	dir := "/var/cache/pghandoff"
	if os.Geteuid() != 0 {
		user, err := os.UserCacheDir()
		if err != nil {
			user = filepath.Join(os.TempDir(), fmt.Sprintf("pghandoff-cache-%d", os.Geteuid()))
		}
		dir = filepath.Join(user, "pghandoff")
	}
	if override := os.Getenv("PGHANDOFF_PG_CACHE"); override != "" {
		dir = override
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make cache folder: %w", err)
	}
	return dir, nil
}

// lock waits for the file's lock and returns what lets go of it.
func lock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock cache folder: %w", err)
	}
	for {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("lock cache folder: %w", err)
	}
	return func() { _ = file.Close() }, nil
}

// freePort returns a port on 127.0.0.1 that nobody listened on a moment ago.
func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}
