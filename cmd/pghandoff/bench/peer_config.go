package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// peerConfig is what a peer's configuration is made from.
type peerConfig struct {
	*stage
	tls  bool
	user *syscall.Credential // who shall read it; nil: this process's
	dir  string
}

const peerPort = 5432 // of sockets in folders of their own

func (c *peerConfig) socket() string {
	return filepath.Join(c.dir, fmt.Sprintf(".s.PGSQL.%d", peerPort))
}

// write makes the folder with configuration, certificates and key in it, for
// the peer's eyes only, and returns the configuration's path.
func (c *peerConfig) write(k kind) (path string, err error) {
	if err := os.Mkdir(c.dir, 0o711); err != nil {
		return "", err
	}
	files := map[string][]byte{k.name + ".conf": []byte(k.config(c))}
	for name, from := range map[string]string{"root.crt": c.pg.RootsFile, "client.crt": c.pg.ClientCertFile, "client.key": c.pg.ClientKeyFile} {
		if files[name], err = os.ReadFile(from); err != nil {
			return "", err
		}
	}
	err = c.give(c.dir)
	for name, data := range files {
		path := filepath.Join(c.dir, name)
		err = errors.Join(err, os.WriteFile(path, data, 0o600), c.give(path))
	}
	return filepath.Join(c.dir, k.name+".conf"), err
}

// give gives a file to the peer's account.
func (c *peerConfig) give(path string) error {
	if c.user == nil {
		return nil
	}
	return os.Lchown(path, int(c.user.Uid), int(c.user.Gid))
}

// pgbouncer pools sessions; server_reset_query is DISCARD ALL by default.
func (c *peerConfig) pgbouncer() string {
	tls := "server_tls_sslmode = disable\n"
	if c.tls {
		tls = fmt.Sprintf(`server_tls_sslmode = verify-full
server_tls_protocols = tlsv1.3
server_tls_ca_file = %[1]s/root.crt
server_tls_cert_file = %[1]s/client.crt
server_tls_key_file = %[1]s/client.key
`, c.dir)
	}
	return fmt.Sprintf(`[databases]
%s = host=%s port=%d dbname=%s user=%s password=%s
[pgbouncer]
listen_addr =
listen_port = %d
unix_socket_dir = %s
unix_socket_mode = 0777
listen_backlog = 1024
auth_type = any
pool_mode = session
default_pool_size = %[9]d
min_pool_size = %[9]d
max_client_conn = 1000
ignore_startup_parameters = extra_float_digits
%[10]s`, route, c.pg.Host, c.pg.Port, c.pg.Database, c.pg.Role, c.pg.Password, peerPort, c.dir, c.poolSize(), tls)
}

// odyssey logs in as the role that needs no password.
func (c *peerConfig) odyssey() string {
	tls := `tls "disable"`
	if c.tls {
		tls = fmt.Sprintf(`tls "verify_full"
  tls_ca_file "%[1]s/root.crt"
  tls_cert_file "%[1]s/client.crt"
  tls_key_file "%[1]s/client.key"
  tls_protocols "tlsv1.3"`, c.dir)
	}
	return fmt.Sprintf(`daemonize no
log_to_stdout yes
log_format "%%p %%l %%m\n"
log_debug no
log_config no
log_session no
log_query no
log_stats no
workers 1
unix_socket_dir "%[1]s"
unix_socket_mode "0777"
listen {
  port %[2]d
}
storage "server" {
  type "remote"
  host "%[3]s"
  port %[4]d
  %[5]s
}
database "%[6]s" {
  user "tunnel" {
    authentication "none"
    storage "server"
    storage_db "%[7]s"
    storage_user "tunnel"
    pool "session"
    pool_size %[8]d
    pool_discard yes
    pool_cancel yes
    pool_rollback yes
  }
}
`, c.dir, peerPort, c.pg.Host, c.pg.Port, tls, route, c.pg.Database, c.poolSize())
}

// stunnel carries each client's own connection.
func (c *peerConfig) stunnel() string {
	return fmt.Sprintf(`foreground = yes
pid =
debug = err
[server]
client = yes
protocol = pgsql
accept = %[1]s
connect = %[2]s:%[3]d
sslVersionMin = TLSv1.3
CAfile = %[4]s/root.crt
cert = %[4]s/client.crt
key = %[4]s/client.key
verifyChain = yes
checkIP = %[2]s
`, c.socket(), c.pg.Host, c.pg.Port, c.dir)
}
