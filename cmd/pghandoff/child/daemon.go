package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/proxy"
	"pghandoff/proxy/admin"
)

// Settings say what a daemon shall be like.
type Settings struct {
	Exe    string // this program
	Dir    string // gets everything of the daemon; must exist
	Route  string // its one route
	Server *throwaway.Cluster
	TLS    string // inside the route's tls: {…}; the identity is app
	Pool   string // inside its pool: {…}
	Allow  string // inside its allow: […]; empty: root and the daemon's own user
	Global string // further top-level lines
}

// Daemon is a running pghandoff serve.
type Daemon struct {
	*Process
	RunDir string
	Audit  string // the file of its audit trail
}

const configText = `run_dir: %[1]q
log: {level: warn}
audit: {file: %[2]q}
%[3]s
routes:
  %[4]s:
    servers: ["%[5]s:%[6]d"]
    database: %[7]q
    user: %[8]q
    password: {file: %[9]q}
    tls: {%[10]s}
    pool: {%[11]s}
%[12]s`

// StartDaemon starts a daemon for the server and does not wait until it is warm.
func StartDaemon(s Settings) (*Daemon, error) {
	d := &Daemon{RunDir: filepath.Join(s.Dir, "run"), Audit: filepath.Join(s.Dir, "audit.jsonl")}
	config, err := d.writeConfig(s)
	if err != nil {
		return nil, fmt.Errorf("write the daemon's configuration: %w", err)
	}
	d.Process, err = Start(exec.Command(s.Exe, "serve", "--config", config)) // no context: Stop ends it
	return d, err
}

// writeConfig writes the daemon's configuration and the password's file, both
// for its eyes only.
func (d *Daemon) writeConfig(s Settings) (path string, err error) {
	secret := filepath.Join(s.Dir, "password")
	if err := os.WriteFile(secret, []byte(s.Server.Password+"\n"), 0o600); err != nil {
		return "", err
	}
	global := s.Global
	if s.Server.ClientCertFile != "" {
		global += fmt.Sprintf("\nidentities: {app: {file: {cert: %q, key: %q, roots: %q}}}", s.Server.ClientCertFile,
			s.Server.ClientKeyFile, s.Server.RootsFile)
	}
	rules := ""
	if s.Allow != "" {
		rules = "    allow: [" + s.Allow + "]\n"
	}
	path = filepath.Join(s.Dir, "pghandoff.yaml")
	text := fmt.Sprintf(configText, d.RunDir, d.Audit, global, s.Route, s.Server.Host, s.Server.Port, s.Server.Database,
		s.Server.Role, secret, s.TLS, s.Pool, rules)
	return path, os.WriteFile(path, []byte(text), 0o600)
}

const warmPatience = 30 * time.Second // a hundred backends take a slow machine five

// AwaitWarm waits until the route has its idle upstreams and returns how many
// there are.
func (d *Daemon) AwaitWarm(ctx context.Context) (idle int, err error) {
	client := admin.Dial(filepath.Join(proxy.ControlDir("", d.RunDir), proxy.ControlSocket))
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(warmPatience); ; {
		status, err := client.Status(ctx)
		if err == nil && len(status.Routes) == 1 && status.Routes[0].Idle >= status.Routes[0].MinIdle {
			return status.Routes[0].Idle, nil
		}
		select {
		case <-look.C:
		case <-d.Done():
			return 0, fmt.Errorf("the daemon ended: %s", d.Output())
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("no warm connections after %s: %w", warmPatience, lastError(status, err))
		}
	}
}

func lastError(status *admin.Status, err error) error {
	if err != nil {
		return err
	}
	if len(status.Routes) > 0 && status.Routes[0].LastError != "" {
		return errors.New(status.Routes[0].LastError)
	}
	return errors.New("no reason is known")
}

// ShortTempDir is the folder of temporary files, unless its name would make the
// path of a socket too long (107 bytes).
func ShortTempDir() string {
	if dir := os.TempDir(); len(dir) <= 50 {
		return dir
	}
	return "/tmp"
}
