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
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgpassfile"
	"golang.org/x/sys/unix"

	"pghandoff/proxy/config"
)

const (
	maxPassword = 64 << 10 // 64 KiB, also for a token
	maxPassfile = 1 << 20  // 1 MiB
)

// passwordSource fetches a route's password. Safe for concurrent use.
type passwordSource struct {
	from           config.Password
	database, user string // to find the line of a passfile by

	mu     sync.Mutex // guards the cached output of a command
	cached config.Secret
	until  time.Time
}

// passwords are what one fetch gave: one for every server, or a passfile.
type passwords struct {
	one            config.Secret
	file           *pgpassfile.Passfile
	database, user string
}

// of returns the password for a server; empty: there is none.
func (p passwords) of(server config.Server) config.Secret {
	if p.file == nil {
		return p.one
	}
	port := strconv.Itoa(int(server.Port))
	found := p.file.FindPassword(server.Host, port, p.database, p.user)
	if found == "" && server.Unix {
		found = p.file.FindPassword("localhost", port, p.database, p.user)
	}
	return config.NewSecret(found)
}

// fetch returns the passwords, empty ones if none is configured. Errors are
// *credentialError and never hold what was read.
func (s *passwordSource) fetch(ctx context.Context) (passwords, error) {
	p := passwords{one: s.from.Value, database: s.database, user: s.user}
	var err error
	switch {
	case s.from.Env != "":
		v, ok := os.LookupEnv(s.from.Env)
		if !ok {
			err = fmt.Errorf("environment variable %s is not set", s.from.Env)
		}
		p.one = config.NewSecret(v)
	case s.from.File != "":
		var b []byte
		if b, err = readRegular(s.from.File, maxPassword, 0); err == nil {
			p.one, err = passwordIn(b, s.from.File)
		}
	case s.from.Passfile != "":
		p.file, err = readPassfile(s.from.Passfile)
	case len(s.from.Command) > 0:
		p.one, err = s.run(ctx)
	}
	if err != nil {
		return passwords{}, &credentialError{fmt.Errorf("password: %w", err)}
	}
	return p, nil
}

// forget makes the next fetch run the command again: the server has refused
// what it printed.
func (s *passwordSource) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cached, s.until = config.Secret{}, time.Time{}
}

// readRegular reads a file of at most max bytes (one more tells a longer one)
// that has none of the mode bits forbidden. It opens without waiting: a FIFO
// without a writer would hold the dial for ever.
func readRegular(path string, max int64, forbidden os.FileMode) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file: write the password to one, or have a command print it", path)
	}
	if info.Mode().Perm()&forbidden != 0 {
		return nil, fmt.Errorf("%s can be read by others: chmod 0600 it", path)
	}
	return io.ReadAll(io.LimitReader(f, max+1))
}

func readPassfile(path string) (*pgpassfile.Passfile, error) {
	b, err := readRegular(path, maxPassfile, 0o077)
	if err != nil {
		return nil, err
	}
	if len(b) > maxPassfile {
		return nil, fmt.Errorf("%s is longer than %d bytes", path, maxPassfile)
	}
	f, err := pgpassfile.ParsePassfile(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

func passwordIn(b []byte, where string) (config.Secret, error) {
	s := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	if s == "" || len(b) > maxPassword || strings.ContainsAny(s, "\x00\n") {
		return config.Secret{}, fmt.Errorf("%s must give one line of 1 to %d bytes", where, maxPassword)
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
	complaint := new(tail)
	cmd.Stdout, cmd.Stderr = out, complaint
	if err := cmd.Run(); err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			err = fmt.Errorf("not done within %s", s.from.Timeout)
		}
		return config.Secret{}, fmt.Errorf("command %s: %w%s", s.from.Command[0], err, complaint.without(firstLine(out.b)))
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

// maxComplaint is how much is kept of what a failing command says on its standard
// error: the end, where the reason stands.
const maxComplaint = 500

// tail keeps the last bytes that are written to it.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	t.b = t.b[max(0, len(t.b)-maxComplaint):]
	return len(p), nil
}

// without is the tail as the end of a sentence, in one line, and without a secret
// that the command may have quoted.
func (t *tail) without(secret []byte) string {
	said := string(t.b)
	if len(secret) > 0 {
		said = strings.ReplaceAll(said, string(secret), "[redacted]")
	}
	words := strings.FieldsFunc(strings.ToValidUTF8(said, "?"), func(c rune) bool { return c <= ' ' || c == 0x7f })
	if len(words) == 0 {
		return ""
	}
	return ": " + strings.Join(words, " ")
}
