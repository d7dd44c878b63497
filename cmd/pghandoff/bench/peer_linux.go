package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"pghandoff/cmd/pghandoff/child"
)

// kind is one of the programs that can be measured beside ours.
type kind struct {
	name    string
	program string // as installed
	get     string // how to get it
	pools   bool   // else each client has a connection to the server of its own
	role    string // that it logs in as
	args    func(config string) []string
	config  func(c *peerConfig) string
}

var kinds = []kind{
	{pgbouncer, "pgbouncer", "Debian: apt install pgbouncer", true, "app", func(f string) []string { return []string{"-q", f} }, (*peerConfig).pgbouncer},
	{odyssey, "odyssey", "build it from https://github.com/yandex/odyssey, Debian has no package", true, tunnelRole, func(f string) []string { return []string{f} }, (*peerConfig).odyssey},
	{stunnel, "stunnel4", "Debian: apt install stunnel4", false, tunnelRole, func(f string) []string { return []string{f} }, (*peerConfig).stunnel},
}

// Peers are the names of what can be measured beside the daemon.
func Peers() (names []string) {
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// peer is a running one.
type peer struct {
	*child.Process
	subject
	kind        kind
	version     string
	certificate string // the common name of its client certificate
}

// find returns the program's path; Debian keeps some of them where only root looks.
func (k kind) find() (string, error) {
	for _, name := range []string{k.program, k.name, "/usr/sbin/" + k.program} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not installed (%s)", k.name, k.get)
}

// choosePeers returns those that are asked for, or else those that are installed.
func (s *stage) choosePeers() (chosen []kind, err error) {
	for _, k := range kinds {
		if s.Against != nil && !slices.Contains(s.Against, k.name) {
			continue
		}
		switch _, err := k.find(); {
		case err == nil:
			chosen = append(chosen, k)
		case s.Against != nil:
			return nil, err
		default:
			s.notes = append(s.notes, "Left out: "+err.Error()+".")
		}
	}
	return chosen, nil
}

// startPeer starts a peer in a folder of its own and waits until it answers.
func (s *stage) startPeer(ctx context.Context, k kind, tls bool) (*peer, error) {
	program, err := k.find()
	if err != nil {
		return nil, err
	}
	user, err := s.account()
	if err != nil {
		return nil, err
	}
	c := &peerConfig{stage: s, tls: tls, user: user, dir: filepath.Join(s.dir, k.name)}
	if !tls {
		c.dir += "-plain"
	}
	file, err := c.write(k)
	if err != nil {
		return nil, fmt.Errorf("configure %s: %w", k.name, err)
	}
	cmd := exec.Command(program, k.args(file)...) // no context: Stop ends it
	cmd.Dir, cmd.Env = c.dir, []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "HOME=" + c.dir}
	if user != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	}
	p := &peer{kind: k, version: versionOf(ctx, k, program), certificate: s.pg.Role}
	if p.Process, err = child.Start(cmd); err != nil {
		return nil, err
	}
	p.subject = subject{name: k.name, role: k.role, conninfo: conninfo(c.dir, peerPort, k.role), socket: c.socket(), pid: p.Pid()}
	err = p.await(ctx)
	if err == nil {
		err = p.proveTLS(ctx, tls)
	}
	if err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	return p, nil
}

// await waits until a connection through the peer works.
func (p *peer) await(ctx context.Context) error {
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(10 * time.Second); ; {
		conn, err := pgconn.Connect(ctx, p.conninfo)
		if err == nil {
			return conn.Close(ctx)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not work: %w; it said: %s", p.name, err, p.Output())
		}
		select {
		case <-look.C:
		case <-p.Done():
			return fmt.Errorf("%s ended: %s", p.name, p.Output())
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// proveTLS asks the server whether the peer came by TLS with its certificate.
func (p *peer) proveTLS(ctx context.Context, tls bool) error {
	conn, err := pgconn.Connect(ctx, p.conninfo)
	if err != nil {
		return err
	}
	results, err := conn.Exec(ctx, "select concat_ws(' ', version, client_dn) from pg_stat_ssl where pid = pg_backend_pid()").ReadAll()
	if err = errors.Join(err, conn.Close(ctx)); err != nil {
		return err
	}
	want := ""
	if tls {
		want = "TLSv1.3 /CN=" + p.certificate
	}
	if got := string(results[0].Rows[0][0]); got != want {
		return fmt.Errorf("%s is connected to the server by %q and should be by %q", p.name, got, want)
	}
	return nil
}

// account is who the server runs as, for programs that refuse to run as root;
// nil: as this process does.
func (s *stage) account() (*syscall.Credential, error) {
	info, err := os.Stat(s.pg.DataDir)
	if err != nil {
		return nil, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 || stat.Uid == 0 {
		return nil, nil
	}
	return &syscall.Credential{Uid: stat.Uid, Gid: stat.Gid}, nil
}

// versionOf is the first line that a program prints about itself.
func versionOf(ctx context.Context, k kind, program string) string {
	option := "--version"
	if k.name == stunnel {
		option = "-version"
	}
	out, _ := exec.CommandContext(ctx, program, option).CombinedOutput() // the name alone will do
	for line := range strings.Lines(string(out)) {
		if start := strings.Index(strings.ToLower(line), k.name); start >= 0 {
			line, _, _ = strings.Cut(strings.TrimSpace(line[start:]), " on ")
			return line
		}
	}
	return k.name
}
