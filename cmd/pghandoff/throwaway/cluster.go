package throwaway

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"pghandoff/certs"
)

// Cluster is a running server. Its fields do not change and its methods may be called from any goroutine; Restart and
// Stop one at a time.
type Cluster struct {
	Host      string // 127.0.0.1
	Port      int
	SocketDir string // folder of the private socket, where superuser and roles need no password
	DataDir   string
	Dir       string // all of it; Close removes it
	BinDir    string // folder of the server's programs

	Role     string
	Password string // random, of Role
	Database string

	CA             *certs.DevCA // nil without TLS
	RootsFile      string       // PEM of CA; the three are "" without TLS
	ClientCertFile string       // CN=Role; these two are "" without ClientCert
	ClientKeyFile  string
	PassFile       string // libpq password file for Role

	config    Config
	account   *account
	mu        sync.Mutex // guards server and closed
	server    *process
	closed    bool
	shortLink string // the socket's folder if it had to lie elsewhere
}

const (
	startPatience = 30 * time.Second // until the server takes connections; it takes a second or two
	stopPatience  = 10 * time.Second
	certLifetime  = 30 * 24 * time.Hour
	portAttempts  = 5
)

// Start makes a new server and returns when it takes connections. ctx bounds the start, not the server's life: that ends
// with Close.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	c := &Cluster{Host: "127.0.0.1", config: config.withDefaults(), Password: newPassword()}
	c.Role, c.Database = c.config.Role, c.config.Database
	if err := c.make(ctx); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("throwaway PostgreSQL: %w", err)
	}
	return c, nil
}

func (c *Cluster) make(ctx context.Context) (err error) {
	if c.BinDir = c.config.BinDir; c.BinDir == "" {
		if c.BinDir, err = FindPrograms(ctx); err != nil {
			return err
		}
	}
	if c.account, err = unprivileged(); err != nil {
		return err
	}
	if err := c.makeFolders(); err != nil {
		return err
	}
	if err := c.initdb(ctx); err != nil {
		return err
	}
	if err := c.makeCertificates(); err != nil {
		return err
	}
	if err := c.startAnywhere(ctx); err != nil {
		return err
	}
	if err := c.makePassFile(); err != nil {
		return err
	}
	return c.makeRoles(ctx)
}

// startAnywhere tries ports until one is free when the server binds it.
func (c *Cluster) startAnywhere(ctx context.Context) error {
	base, err := os.ReadFile(filepath.Join(c.DataDir, "postgresql.conf"))
	if err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		if c.Port, err = freePort(); err != nil {
			return err
		}
		text := string(base) + "\n" + c.config.settings(c.SocketDir, c.Port)
		if err := c.writeData("postgresql.conf", text, 0o600); err != nil {
			return err
		}
		if err := c.writeData("pg_hba.conf", c.config.hba(), 0o600); err != nil {
			return err
		}
		err := c.startServer(ctx)
		if err == nil || attempt == portAttempts || !errors.Is(err, errPortTaken) {
			return err
		}
	}
}

var errPortTaken = errors.New("another process took the port")

// startServer starts the server on its folder and waits until it takes connections.
func (c *Cluster) startServer(ctx context.Context) error {
	cmd := c.account.command(c.Dir, filepath.Join(c.BinDir, "postgres"), "-D", c.DataDir)
	cmd.Env = append(cmd.Env, c.config.Env...)
	p, err := start(cmd, c.config.Log)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.server = p
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := c.ping(ctx); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-p.done:
			if strings.Contains(p.log.String(), "could not bind IPv4 address") {
				return fmt.Errorf("server did not start: %w", errPortTaken)
			}
			return fmt.Errorf("server did not start (%v); its log ends with:\n%s", p.err, p.log)
		case <-ctx.Done():
			p.stop(syscall.SIGQUIT, stopPatience)
			return fmt.Errorf("server took no connections (%w); its log ends with:\n%s", ctx.Err(), p.log)
		}
	}
}

// Log returns the end of the server's log.
func (c *Cluster) Log() string {
	if p := c.running(); p != nil {
		return p.log.String()
	}
	return ""
}

func (c *Cluster) running() *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.server
}

// Pid returns the server's process id, or 0 if it never started.
func (c *Cluster) Pid() int {
	if p := c.running(); p != nil {
		return p.cmd.Process.Pid
	}
	return 0
}

// Reload makes the server read its configuration and certificates again (SIGHUP).
func (c *Cluster) Reload() error {
	p := c.running()
	if p == nil || p.ended() {
		return errors.New("reload throwaway PostgreSQL: it is not running")
	}
	return p.cmd.Process.Signal(syscall.SIGHUP)
}

// Stop ends the server and keeps its folder. Immediate ends it as a crash would; otherwise its sessions are told that
// it shuts down.
func (c *Cluster) Stop(immediate bool) {
	p := c.running()
	if p == nil {
		return
	}
	signal := syscall.SIGINT // PostgreSQL's fast shutdown
	if immediate {
		signal = syscall.SIGQUIT
	}
	p.stop(signal, stopPatience)
}

// Restart stops the server and starts it again on the same port.
func (c *Cluster) Restart(ctx context.Context) error {
	c.Stop(false)
	return c.startServer(ctx)
}

// Close ends the server and removes its folder. It may be called more than once.
func (c *Cluster) Close() error {
	c.mu.Lock()
	closed := c.closed
	c.closed = true
	c.mu.Unlock()
	if closed {
		return nil
	}
	c.Stop(true)
	var err error
	for _, dir := range []string{c.Dir, c.shortLink} {
		if dir != "" {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}
	return err
}
