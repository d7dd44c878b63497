package handoff

import (
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// LaunchConfig says what to acquire and which program to become.
type LaunchConfig struct {
	Socket    string // as in Request
	ServerUID *int   // as in Request
	Database  string // the route; "" leaves it to the daemon, which takes the only one
	User      string // "": see UserName
	State     State  // "": Startup
	Count     int    // leases; 0: 1
	FirstFD   int    // descriptor of the first lease; 0: 3

	Args []string  // the program, looked up on PATH as a shell does, and its arguments
	Env  []string  // its environment, before the changes made here
	Warn io.Writer // gets a warning of one line; nil: none is written
}

// Exit codes of Launch, in the program's own scheme and, for the last two, a shell's.
const (
	ExitFailed      = 1   // the daemon refused, or a descriptor could not be placed
	ExitUsage       = 2   // wrong use: target descriptors are open, no route given and none to choose, no command
	ExitUnreachable = 3   // no daemon
	ExitNotRunnable = 126 // the command was found but cannot be run
	ExitNotFound    = 127 // the command was not found
)

// ExitError is why Launch did not become the program; Code is what the process should exit with.
type ExitError struct {
	Code int
	Err  error
}

// Error returns the sentence of the cause.
func (e *ExitError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *ExitError) Unwrap() error { return e.Err }

func exit(code int, format string, args ...any) *ExitError {
	return &ExitError{Code: code, Err: fmt.Errorf(format, args...)}
}

const (
	maxLaunched = 100
	maxEnvValue = 120 << 10 // 120 KiB; the kernel takes 128 KiB for one variable with its name
	lastFD      = math.MaxInt16
)

// withDefaults fills in what is not set, and refuses what makes no sense.
func (c LaunchConfig) withDefaults() (LaunchConfig, error) {
	if c.Count == 0 {
		c.Count = 1
	}
	if c.FirstFD == 0 {
		c.FirstFD = 3
	}
	if c.State == "" {
		c.State = Startup
	}
	c.Socket = SocketPath(c.Socket)
	switch {
	case len(c.Args) == 0:
		return c, exit(ExitUsage, "no command to run: name it after --")
	case c.Count < 1 || c.Count > maxLaunched:
		return c, exit(ExitUsage, "%d connections asked for: from 1 to %d are possible", c.Count, maxLaunched)
	case c.FirstFD < 3 || c.FirstFD+c.Count > lastFD:
		return c, exit(ExitUsage, "first descriptor %d: it must be 3 or more, since 0 to 2 are standard input, output and "+
			"error, and less than %d", c.FirstFD, lastFD-c.Count)
	case c.State != Startup && c.State != Ready:
		return c, exit(ExitUsage, "state %q: it must be %s or %s", c.State, Startup, Ready)
	}
	return c, nil
}

// refused gives the daemon's no the exit code that fits: without a route the mistake is the caller's.
func (c LaunchConfig) refused(err error) *ExitError {
	if c.Database == "" && IsCode(err, "3D000") {
		return &ExitError{Code: ExitUsage, Err: err}
	}
	return &ExitError{Code: ExitFailed, Err: err}
}

// environment returns the program's environment: the descriptors and replies, and, for drivers that know only the wire
// socket, where that is. It takes out PGHANDOFF_URL, which may hold the daemon's password.
func (c LaunchConfig) environment(granted []Granted, took time.Duration) ([]string, error) {
	env := slices.DeleteFunc(slices.Clone(c.Env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.Contains([]string{"PGHANDOFF_URL", EnvFDs, EnvControl, EnvState, EnvReply, EnvAcquired}, name)
	})
	fds, replies := make([]string, len(granted)), []byte{'['}
	for i, g := range granted {
		fds[i] = strconv.Itoa(c.FirstFD + i)
		g.Secret = nil
		if i > 0 {
			replies = append(replies, ',')
		}
		replies = appendReply(replies, Reply{Granted: &g})
	}
	replies = append(replies, ']')
	if len(replies) > maxEnvValue {
		return nil, errors.New("the replies do not fit an environment variable: ask for fewer connections, or state startup")
	}
	env = append(env, EnvFDs+"="+strings.Join(fds, ","), EnvControl+"="+strconv.Itoa(c.FirstFD+c.Count),
		EnvState+"="+string(c.State), EnvReply+"="+string(replies), EnvAcquired+"="+strconv.FormatInt(took.Microseconds(), 10))
	return c.wireEnvironment(env, granted[0].Database), nil
}

// wireEnvironment adds PGHOST, PGDATABASE and PGUSER, all or none: together with what somebody else set they would
// point nowhere.
func (c LaunchConfig) wireEnvironment(env []string, database string) []string {
	for _, name := range []string{"PGHOST", "PGDATABASE", "PGUSER"} {
		if _, set := lookup(env, name); set {
			if c.Warn != nil {
				_, _ = fmt.Fprintf(c.Warn, "pghandoff: %s is set already, so PGHOST, PGDATABASE and PGUSER are left as they "+
					"are: drivers that ignore %s will not use pghandoff\n", name, EnvFDs)
			}
			return env
		}
	}
	folder, err := filepath.Abs(filepath.Dir(c.Socket))
	if err != nil {
		folder = filepath.Dir(c.Socket)
	}
	env = append(env, "PGHOST="+folder, "PGUSER="+c.User)
	if c.Database != "" {
		database = c.Database
	}
	if database != "" {
		env = append(env, "PGDATABASE="+database)
	}
	return env
}

// lookup returns the first value of a variable, as getenv(3) does.
func lookup(env []string, name string) (value string, set bool) {
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value, true
		}
	}
	return "", false
}
