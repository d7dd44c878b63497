package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"pghandoff/proxy/config"
)

// maxPassword bounds a password or token. 64 KiB.
const maxPassword = 64 << 10

// passwordSource fetches a route's password. Safe for concurrent use.
type passwordSource struct {
	from config.Password

	mu     sync.Mutex // guards the cached output of a command
	cached config.Secret
	until  time.Time
}

// fetch returns the password, or an empty secret if none is configured. Errors
// are *credentialError and never hold what was read.
func (s *passwordSource) fetch(ctx context.Context) (config.Secret, error) {
	switch {
	case s.from.Env != "":
		v, ok := os.LookupEnv(s.from.Env)
		if !ok {
			return config.Secret{}, &credentialError{fmt.Errorf("password: environment variable %s is not set", s.from.Env)}
		}
		return config.NewSecret(v), nil
	case s.from.File != "":
		return readPassword(s.from.File)
	case len(s.from.Command) > 0:
		return s.run(ctx)
	}
	return s.from.Value, nil
}

func readPassword(path string) (config.Secret, error) {
	f, err := os.Open(path)
	if err != nil {
		return config.Secret{}, &credentialError{fmt.Errorf("password: %w", err)}
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxPassword+1))
	if err != nil {
		return config.Secret{}, &credentialError{fmt.Errorf("password: %w", err)}
	}
	return passwordIn(b, path)
}

func passwordIn(b []byte, where string) (config.Secret, error) {
	s := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	if s == "" || len(b) > maxPassword || strings.ContainsAny(s, "\x00\n") {
		return config.Secret{}, &credentialError{fmt.Errorf("password: %s must give one line of 1 to %d bytes", where, maxPassword)}
	}
	return config.NewSecret(s), nil
}

// run runs the command, one at a time, unless its last output is still good.
func (s *passwordSource) run(ctx context.Context) (config.Secret, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.cached.Empty() && time.Now().Before(s.until) {
		return s.cached, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.from.Timeout.Std())
	defer cancel()
	cmd := exec.CommandContext(ctx, s.from.Command[0], s.from.Command[1:]...)
	cmd.WaitDelay = time.Second
	// The URL that the daemon was started with may hold another secret.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "PGHANDOFF_URL=") })
	out := &bounded{max: maxPassword + 1, full: cancel}
	cmd.Stdout = out // its standard error is not kept: it may quote the token
	if err := cmd.Run(); err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			err = fmt.Errorf("not done within %s", s.from.Timeout)
		}
		return config.Secret{}, &credentialError{fmt.Errorf("password: command %s: %w", s.from.Command[0], err)}
	}
	secret, err := passwordIn(firstLine(out.b), "command "+s.from.Command[0])
	if err == nil && s.from.Cache > 0 {
		s.cached, s.until = secret, time.Now().Add(s.from.Cache.Std())
	}
	return secret, err
}

func firstLine(b []byte) []byte {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	return line
}

// bounded is a buffer that refuses to grow beyond max bytes and calls full
// instead, which ends the program that fills it.
type bounded struct {
	b    []byte // not an embedded bytes.Buffer, whose ReadFrom would know no bound
	max  int
	full func()
}

func (b *bounded) Write(p []byte) (int, error) {
	if len(b.b)+len(p) > b.max {
		b.full()
		return 0, errors.New("prints too much")
	}
	b.b = append(b.b, p...)
	return len(p), nil
}
