package throwaway

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"pghandoff/certs"
)

// maxSocketDir keeps DIR/.s.PGSQL.65535 within the 107 bytes of a Unix socket's path.
const maxSocketDir = 107 - len("/.s.PGSQL.65535")

// makeFolders makes Dir with data and socket in it, both closed to all but the server's account (and root).
func (c *Cluster) makeFolders() (err error) {
	if c.config.Dir == "" {
		c.Dir, err = os.MkdirTemp(reachableTemp(c.account), "pghandoff-pg-")
	} else {
		c.Dir, err = filepath.Abs(c.config.Dir)
		if entries, readErr := os.ReadDir(c.Dir); readErr == nil && len(entries) > 0 {
			dir := c.Dir
			c.Dir = "" // not ours to remove
			return fmt.Errorf("folder %s is not empty: name an empty or new one", dir)
		}
		err = errors.Join(err, os.MkdirAll(c.Dir, 0o755))
	}
	if err != nil {
		return err
	}
	if err := os.Chmod(c.Dir, 0o711); err != nil {
		return err
	}
	if c.account != nil && !reachable(c.Dir) {
		return fmt.Errorf("folder %s cannot be reached by uid %d, who runs the server: name one below a folder that is open "+
			"to all, such as /tmp", c.Dir, c.account.uid)
	}
	c.DataDir, c.SocketDir = filepath.Join(c.Dir, "data"), filepath.Join(c.Dir, "socket")
	if len(c.SocketDir) > maxSocketDir {
		if c.shortLink, err = os.MkdirTemp("/tmp", "pghandoff-s-"); err != nil {
			return err
		}
		c.SocketDir = c.shortLink
	}
	for _, dir := range []string{c.DataDir, c.SocketDir} {
		if err := errors.Join(os.MkdirAll(dir, 0o700), c.account.own(dir)); err != nil {
			return err
		}
	}
	return os.Mkdir(filepath.Join(c.Dir, "client"), 0o700)
}

// reachableTemp returns the folder for temporary files, or /tmp if the account could not reach it.
func reachableTemp(a *account) string {
	if dir := os.TempDir(); a == nil || reachable(dir) {
		return dir
	}
	return "/tmp"
}

// reachable tells whether everybody may pass through all folders above and including path.
func reachable(path string) bool {
	for ; ; path = filepath.Dir(path) {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		if path == filepath.Dir(path) {
			return true
		}
	}
}

func (c *Cluster) initdb(ctx context.Context) error {
	p, err := start(c.account.command(c.Dir, filepath.Join(c.BinDir, "initdb"), "-D", c.DataDir, "-U", superuser,
		"-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"), nil)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		p.stop(syscall.SIGTERM, stopPatience)
		return fmt.Errorf("initdb: %w", ctx.Err())
	}
	if p.err != nil {
		return fmt.Errorf("initdb (%w) said:\n%s", p.err, p.log)
	}
	return nil
}

// writeData writes a file into the data folder, for the server's account.
func (c *Cluster) writeData(name, text string, mode os.FileMode) error {
	path := filepath.Join(c.DataDir, name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		return err
	}
	return errors.Join(os.Chmod(path, mode), c.account.own(path))
}

// makeCertificates makes the CA, the server's certificate and the client's.
func (c *Cluster) makeCertificates() error {
	if !c.config.TLS {
		return nil
	}
	if c.CA = c.config.CA; c.CA == nil {
		ca, err := certs.NewDevCA(time.Now())
		if err != nil {
			return err
		}
		c.CA = ca
	}
	server, err := c.CA.IssueServer(c.config.ServerNames, certLifetime)
	if err != nil {
		return err
	}
	if err := c.SetServerCertificate(server); err != nil {
		return err
	}
	if err := c.writeData("root.crt", string(c.CA.RootsPEM()), 0o644); err != nil {
		return err
	}
	c.RootsFile = c.clientFile("root.crt")
	if err := os.WriteFile(c.RootsFile, c.CA.RootsPEM(), 0o644); err != nil {
		return err
	}
	if !c.config.ClientCert {
		return nil
	}
	client, err := c.CA.IssueClient(c.Role, certLifetime)
	if err != nil {
		return err
	}
	c.ClientCertFile, c.ClientKeyFile = c.clientFile("client.crt"), c.clientFile("client.key")
	return errors.Join(os.WriteFile(c.ClientCertFile, client.ChainPEM, 0o644), os.WriteFile(c.ClientKeyFile, client.KeyPEM, 0o600))
}

// SetServerCertificate writes another certificate for the server; Reload or Restart makes it take it.
func (c *Cluster) SetServerCertificate(issued *certs.Issued) error {
	return errors.Join(c.writeData("server.key", string(issued.KeyPEM), 0o600),
		c.writeData("server.crt", string(issued.ChainPEM), 0o644))
}

func (c *Cluster) clientFile(name string) string { return filepath.Join(c.Dir, "client", name) }

// makePassFile writes the password for every host, port and database: the random password fits nowhere else.
func (c *Cluster) makePassFile() error {
	c.PassFile = c.clientFile("pgpass")
	return os.WriteFile(c.PassFile, fmt.Appendf(nil, "*:*:*:%s:%s\n", c.Role, c.Password), 0o600)
}
