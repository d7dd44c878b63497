package throwaway

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"pghandoff/certs"
)

// Config says what the server shall be like. The zero value is a server without TLS that wants SCRAM.
type Config struct {
	Dir         string            // the folder; must not exist or be empty. "": a new one among the temporary files
	BinDir      string            // folder of initdb and postgres. "": FindPrograms
	TLS         bool              // the TCP port takes TLS only, with a certificate of CA
	ClientCert  bool              // a client certificate of CA is demanded, its common name being the role; implies TLS
	Auth        string            // scram-sha-256 (""), md5, password, trust, cert (cert implies ClientCert)
	Role        string            // "": "app"; may log in with a random password and owns Database
	Database    string            // "": "orders"
	Roles       []Role            // further roles
	Databases   []string          // further databases, owned by Role
	Settings    map[string]string // for postgresql.conf; these win over the settings made here
	HBA         []string          // lines of pg_hba.conf for TCP, in place of the one made from TLS, ClientCert and Auth
	ServerNames []string          // DNS names and addresses in the server's certificate. nil: localhost, 127.0.0.1, ::1
	CA          *certs.DevCA      // nil: a new one
	Env         []string          // further environment of the server, such as "OPENSSL_CONF=…"
	Log         io.Writer         // gets the server's log; nil: kept only for error messages
}

// Role is a further role with LOGIN.
type Role struct {
	Name     string
	Password string // "": none
	Options  string // further words of CREATE ROLE, such as "SUPERUSER" or "REPLICATION"
}

const superuser = "postgres"

// withDefaults fills in what is not set; it changes only the copy.
func (c Config) withDefaults() Config {
	c.Role, c.Database = or(c.Role, "app"), or(c.Database, "orders")
	c.Auth = or(c.Auth, "scram-sha-256")
	c.ClientCert = c.ClientCert || c.Auth == "cert"
	c.TLS = c.TLS || c.ClientCert
	if c.ServerNames == nil {
		c.ServerNames = []string{"localhost", "127.0.0.1", "::1"}
	}
	return c
}

func or(value, instead string) string {
	if value == "" {
		return instead
	}
	return value
}

// hba returns pg_hba.conf. Everybody may use the socket, since only this process and the server reach its folder.
func (c Config) hba() string {
	lines := []string{"local all all trust", "local replication all trust"}
	if c.HBA != nil {
		return strings.Join(append(lines, c.HBA...), "\n") + "\n"
	}
	kind, option := "host", ""
	if c.TLS {
		kind = "hostssl"
	}
	if c.ClientCert && c.Auth != "cert" {
		option = " clientcert=verify-full"
	}
	for _, database := range []string{"all", "replication"} {
		lines = append(lines, fmt.Sprintf("%s %s all 127.0.0.1/32 %s%s", kind, database, c.Auth, option))
	}
	return strings.Join(lines, "\n") + "\n"
}

// settings returns the lines for the end of postgresql.conf; the last of equal names counts there.
func (c Config) settings(socketDir string, port int) string {
	all := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    fmt.Sprint(port),
		"unix_socket_directories": socketDir,
		"max_connections":         "100",
		"shared_buffers":          "16MB",
		"fsync":                   "off",
		"synchronous_commit":      "off",
		"full_page_writes":        "off",
		"logging_collector":       "off",
		"log_destination":         "stderr",
		"log_line_prefix":         "%m [%p] %q%u@%d ",
		"password_encryption":     "scram-sha-256",
	}
	if c.Auth == "md5" {
		all["password_encryption"] = "md5"
	}
	if c.TLS {
		all["ssl"], all["ssl_cert_file"], all["ssl_key_file"], all["ssl_ca_file"] = "on", "server.crt", "server.key", "root.crt"
	}
	maps.Copy(all, c.Settings)
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%s = '%s'\n", name, strings.ReplaceAll(all[name], "'", "''"))
	}
	return b.String()
}

// newPassword returns 96 random bits in hexadecimal.
func newPassword() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
