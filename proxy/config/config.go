package config

import (
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// Config is the whole configuration. The comments of its fields and their
// `default` tags are the reference of settings in docs/settings.md.
type Config struct {
	// Folder of the sockets for functions. It holds nothing else and functions
	// cannot write in it, so it may be mounted into containers. `--run-dir`
	// overrides it; without either, `$RUNTIME_DIRECTORY`, else `/run/pghandoff`
	// for root, else `$XDG_RUNTIME_DIR/pghandoff`.
	RunDir string `yaml:"run_dir"`
	// Folder of the control socket and the lock, mode 0700, never below
	// `run_dir`. `--control-dir` overrides it; without either, `run_dir` with
	// `.control` appended.
	ControlDir string `yaml:"control_dir"`
	// Mode and group of the sockets in `run_dir`.
	Socket Socket `yaml:"socket"`
	// More folders, each with sockets, routes and rules of its own: one for
	// each tenant whose containers share uids with another's.
	Sockets []Folder `yaml:"sockets"`
	// How the daemon logs, on standard error.
	Log Log `yaml:"log"`
	// What the event loops wait with: `auto` or `epoll`, which are the same.
	Engine string `yaml:"engine" default:"auto"`
	// Most event loops, each a thread that relays leases; 0: one a core. A further
	// one is used when those before it have no room.
	Loops int `yaml:"loops" default:"0"`
	// What one peer uid may hold at a time.
	Limits Limits `yaml:"limits"`
	// A TCP listener with TLS, for functions that share no Unix socket with the
	// daemon: in a virtual machine, or on another host.
	Listen Listen `yaml:"listen"`
	// Where the audit trail goes.
	Audit Audit `yaml:"audit"`
	// Client certificates and trust anchors, by name. Exactly one source each.
	Identities map[string]Identity `yaml:"identities"`
	// Ways to a database, by the name that functions ask for. At least one.
	Routes map[string]Route `yaml:"routes"`
}

// Socket says who may open the sockets of a folder, as the file system sees it.
type Socket struct {
	// Octal mode, in quotes.
	Mode string `yaml:"mode" default:"0660"`
	// Group name or gid that owns the sockets; empty: the daemon's own.
	Group string `yaml:"group"`
}

// Folder is a further folder of sockets.
type Folder struct {
	// Absolute path of the folder.
	Path string `yaml:"path"`
	// Octal mode of its sockets, in quotes.
	Mode string `yaml:"mode" default:"0660"`
	// Group name or gid that owns its sockets; empty: the daemon's own.
	Group string `yaml:"group"`
	// Names of the routes that can be reached here; empty: all.
	Routes []string `yaml:"routes"`
	// Who may use this folder, in place of the routes' own `allow`; empty: the
	// routes' own.
	Allow []Rule `yaml:"allow"`
}

// Log says how the daemon logs.
type Log struct {
	// `debug`, `info`, `warn` or `error`.
	Level string `yaml:"level" default:"info"`
	// `json`, or `console` for people.
	Format string `yaml:"format" default:"json"`
}

// Limits bound what one peer uid may hold, so that no function can starve the
// others. Over a limit a function gets 53300.
type Limits struct {
	// Leases held or asked for.
	Leases int `yaml:"leases" default:"1000"`
	// Requests waiting for an upstream.
	Waiting int `yaml:"waiting" default:"1000"`
	// Open connections to the sockets.
	Connections int `yaml:"connections" default:"2000"`
}

// Listen is a TCP listener with TLS. At least one of `client_roots` and `users` is
// needed; with both, a function must show a certificate and know a password.
type Listen struct {
	// `host:port` to listen on; `:port` is every address of this host. Empty: there
	// is no listener.
	Address string `yaml:"address"`
	// Name of the entry of `identities` whose certificate is shown to functions. Its
	// source must be `file`, and a server must be allowed to use the certificate.
	Identity string `yaml:"identity"`
	// PEM file of certificate authorities: a function must show a certificate that
	// chains to one of them. SIGHUP reads it anew. Empty: none is asked for.
	ClientRoots string `yaml:"client_roots"`
	// File of users and SCRAM-SHA-256 verifiers, a line `"name" "SCRAM-SHA-256$…"`
	// for each, as PgBouncer's `auth_file`; others may not read it. A function logs
	// in as one of them. SIGHUP reads it anew. Empty: no password is asked for.
	Users string `yaml:"users"`
	// Oldest version of TLS that is accepted: `1.2` or `1.3`.
	MinVersion string `yaml:"min_version" default:"1.2"`
}

// Audit says where the audit trail goes.
type Audit struct {
	// Path of a file of JSON lines, appended to and created with mode 0600;
	// opened anew on SIGHUP. Empty: the lines go to the log.
	File string `yaml:"file"`
}

// Identity is one source of a client certificate and of trust anchors.
type Identity struct {
	// PEM files.
	File *FileIdentity `yaml:"file"`
	// HashiCorp Vault's PKI engine, which signs requests of ours.
	Vault *VaultIdentity `yaml:"vault"`
	// A program that signs requests of ours.
	Exec *ExecIdentity `yaml:"exec"`
	// A development CA that the daemon keeps for itself.
	Self *SelfIdentity `yaml:"self"`
	// Over how long a rotation replaces the upstreams that logged in with the
	// certificate before, each before that one's end. 0: at once.
	DrainWindow Duration `yaml:"drain_window" default:"5m"`
}

// FileIdentity names PEM files.
type FileIdentity struct {
	// Client certificate, leaf first, with its intermediates.
	Cert string `yaml:"cert"`
	// Private key of the leaf. As libpq demands, others may not read it.
	Key string `yaml:"key"`
	// Trust anchors for the server's certificate; empty: the route's
	// `tls.roots` alone.
	Roots string `yaml:"roots"`
}

// ExecIdentity is a certificate that a program has signed. It is renewed, with a new
// key, in the last third of its life.
type ExecIdentity struct {
	// Program and arguments, run without a shell. It gets a certificate request
	// (PKCS #10, PEM) on standard input and prints the chain, leaf first.
	Command []string `yaml:"command"`
	// How long it may take.
	Timeout Duration `yaml:"timeout" default:"30s"`
	// Common name to ask for, usually the database role.
	CommonName string `yaml:"common_name"`
	// Subject alternative names to ask for: DNS names, IP addresses, URIs.
	Names []string `yaml:"names"`
	// Folder where key and certificate are kept, made with mode 0700.
	Storage string `yaml:"storage"`
	// PEM file of trust anchors for the server's certificate; empty: the route's
	// `tls.roots` alone.
	Roots string `yaml:"roots"`
}

// VaultIdentity is a certificate that Vault's PKI engine has signed. It is renewed,
// with a new key, in the last third of its life.
type VaultIdentity struct {
	// Base URL of Vault.
	Address string `yaml:"address"`
	// PEM file of trust anchors for Vault's own certificate; empty: the system's.
	VaultRoots string `yaml:"vault_roots"`
	// Namespace of Vault Enterprise; empty: none.
	Namespace string `yaml:"namespace"`
	// Where the PKI engine is mounted, and the role to sign by, which must allow
	// client certificates (`client_flag`).
	Mount string `yaml:"mount" default:"pki"`
	Role  string `yaml:"role"`
	// How long a certificate is to live; 0: as the role has it.
	TTL Duration `yaml:"ttl" default:"0s"`
	// File of a Vault token, as Vault's agent keeps it; read anew for each request.
	TokenFile string `yaml:"token_file"`
	// Role of Vault's Kubernetes auth method to log in by instead, with the token of
	// the service account.
	KubernetesRole      string `yaml:"kubernetes_role"`
	KubernetesMount     string `yaml:"kubernetes_mount" default:"kubernetes"`
	KubernetesTokenFile string `yaml:"kubernetes_token_file" default:"/var/run/secrets/kubernetes.io/serviceaccount/token"`
	// How long a request may take.
	Timeout Duration `yaml:"timeout" default:"30s"`
	// Common name to ask for, usually the database role.
	CommonName string `yaml:"common_name"`
	// Subject alternative names to ask for: DNS names, IP addresses, URIs.
	Names []string `yaml:"names"`
	// Folder where key and certificate are kept, made with mode 0700.
	Storage string `yaml:"storage"`
	// PEM file of trust anchors for the server's certificate; empty: the route's
	// `tls.roots` alone.
	Roots string `yaml:"roots"`
}

// SelfIdentity is a development CA, not for production.
type SelfIdentity struct {
	// Common name of the client certificate, usually the database role.
	CommonName string `yaml:"common_name"`
	// Folder where CA and key are kept, made with mode 0700.
	Directory string `yaml:"directory"`
}

// Route is a named way to a database.
type Route struct {
	// `host:port` or `host` (port 5432) of each server, tried in order; a path
	// is the folder of a Unix socket.
	Servers []string `yaml:"servers"`
	// As libpq: `any`, `read-write`, `read-only`, `primary`, `standby`,
	// `prefer-standby`. Needs PostgreSQL 14 or newer unless `any`.
	TargetSessionAttrs string `yaml:"target_session_attrs" default:"any"`
	// Database to connect to; empty: the route's name.
	Database string `yaml:"database"`
	// Role to log in as.
	User string `yaml:"user"`
	// Where the role's password comes from, fetched anew for each login.
	Password Password `yaml:"password"`
	// User names that functions may give; empty: any, noted in the audit and
	// otherwise ignored. Another name gets 28000.
	Users []string `yaml:"users"`
	// Names of start-up parameters to drop instead of applying them.
	IgnoreStartupParameters []string `yaml:"ignore_startup_parameters"`
	// How the connection to the server is protected.
	TLS TLS `yaml:"tls"`
	// How many upstreams there are and how they are shared.
	Pool Pool `yaml:"pool"`
	// Limits in time.
	Timeouts Timeouts `yaml:"timeouts"`
	// Who may use the route: a function must match every key of one entry.
	// Empty: root and the daemon's own user.
	Allow []Rule `yaml:"allow"`
}

// Password says where a password comes from. At most one of its keys.
type Password struct {
	// Name of an environment variable of the daemon.
	Env string `yaml:"env"`
	// Path of a regular file; one newline at its end is left out.
	File string `yaml:"file"`
	// Path of a libpq password file (`host:port:database:user:password`), which
	// others may not read. Without a line for the server there is no password.
	Passfile string `yaml:"passfile"`
	// Program and arguments, run without a shell; the first line it prints is
	// the password. For tokens that expire (IAM).
	Command []string `yaml:"command"`
	// How long the command may take.
	Timeout Duration `yaml:"timeout" default:"10s"`
	// How long what it printed is used for further logins; 0: not at all.
	Cache Duration `yaml:"cache" default:"0s"`
	// The password itself. Prefer one of the others.
	Value Secret `yaml:"value"`
}

// TLS says how the connection to the server is protected.
type TLS struct {
	// libpq's sslmode: `verify-full`, `verify-ca`, `require`, `prefer`,
	// `allow`, `disable`. The last four do not know whom they talk to.
	Mode string `yaml:"mode" default:"verify-full"`
	// Name of an entry of `identities`; empty: no client certificate.
	Identity string `yaml:"identity"`
	// Trust anchors: path of a PEM file, or `system`. Empty: those of the
	// identity, else the system's.
	Roots string `yaml:"roots"`
	// Revocation lists: path of a PEM file, or of one list in DER. Each
	// certificate of the server's chain needs one of its issuer's that is in its
	// time, as with libpq's `sslcrl`. SIGHUP reads it anew. Empty: not checked.
	CRL string `yaml:"crl"`
	// `postgres` (SSLRequest), or `direct` (PostgreSQL 17 and newer).
	Negotiation string `yaml:"negotiation" default:"postgres"`
	// SCRAM channel binding: `prefer`, `require` or `disable`.
	ChannelBinding string `yaml:"channel_binding" default:"prefer"`
	// Oldest version of TLS that is accepted: `1.2` or `1.3`.
	MinVersion string `yaml:"min_version" default:"1.2"`
	// What becomes of a lease whose connection logged in with a client certificate
	// that has ended since: `keep` (it runs on, and the audit says so), or `close`
	// (it ends when its session is idle, with 57P01).
	Expired string `yaml:"expired" default:"keep"`
	// Library that does the handshake: `std` (Go's crypto/tls), or `utls`, which
	// sends PostgreSQL up to 17 the key share that it wants at once; `std` learns
	// that from the first connection. SECURITY.md says what `utls` lacks.
	Handshaker string `yaml:"handshaker" default:"std"`
}

// Pool says how many upstreams a route has and how they are shared.
type Pool struct {
	// Idle upstreams kept ready at all times, from start on, as far as `max`
	// allows.
	MinIdle int `yaml:"min_idle" default:"2"`
	// Upstreams at most, idle or leased.
	Max int `yaml:"max" default:"20"`
	// How long a function waits for one. 0: not at all.
	WaitTimeout Duration `yaml:"wait_timeout" default:"5s"`
	// When a waiting function on the wire socket is told so by a NOTICE.
	WaitNotice Duration `yaml:"wait_notice" default:"2s"`
	// Age at which an upstream is replaced, before it runs out; 0: never.
	MaxLifetime Duration `yaml:"max_lifetime" default:"1h"`
	// Age at which a lease is ended; 0: never. The function is told 57P05 when
	// its session is idle, or after 5 s.
	LeaseTimeout Duration `yaml:"lease_timeout" default:"0s"`
	// How long an idle upstream beyond `min_idle` is kept; 0: for ever.
	IdleTimeout Duration `yaml:"idle_timeout" default:"10m"`
	// What happens between two functions: `discard` (DISCARD ALL and RESET
	// ROLE, in the background), `close` (each upstream serves one function) or
	// `none` (session state goes on to the next function).
	Reset string `yaml:"reset" default:"discard"`
}

// Timeouts are limits in time.
type Timeouts struct {
	// For opening a connection to the server, a host name's look-up included.
	Connect Duration `yaml:"connect" default:"5s"`
	// For TLS and login together.
	Login Duration `yaml:"login" default:"10s"`
	// How long running transactions may go on once the daemon is told to stop.
	Drain Duration `yaml:"drain" default:"30s"`
	// How long a function may leave a transaction open without saying anything;
	// 0: for ever. It is then told 25P03, as by PostgreSQL's
	// `idle_in_transaction_session_timeout`.
	IdleInTransaction Duration `yaml:"idle_in_transaction" default:"0s"`
	// How long nothing may pass on a lease unless the server has yet to answer;
	// 0: for ever. The function is then told 57P05: one that is frozen does not
	// hold a connection that others wait for. Functions that LISTEN for longer
	// want 0. It may take an eighth longer.
	IdleLease Duration `yaml:"idle_lease" default:"10m"`
}

// Rule is an entry of `allow`. All of its keys must match.
type Rule struct {
	// Numeric user id.
	UID *uint32 `yaml:"uid"`
	// User name, looked up on this host.
	User string `yaml:"user"`
	// Numeric group id, primary or supplementary.
	GID *uint32 `yaml:"gid"`
	// Group name, looked up on this host.
	Group string `yaml:"group"`
	// `true`: whoever can open the socket, or has logged in at the TCP listener.
	Any bool `yaml:"any"`
	// Common name of the certificate that a function shows at the TCP listener.
	CertCN string `yaml:"cert_cn"`
	// Its distinguished name, as RFC 4514 writes it: `CN=app,OU=jobs,O=Example`.
	CertDN string `yaml:"cert_dn"`
	// One of its URIs, such as a SPIFFE ID.
	CertURI string `yaml:"cert_uri"`
}

// Duration is a time.Duration that is written with its unit ("5s", "1h30m").
type Duration time.Duration

// UnmarshalYAML refuses numbers without a unit.
func (d *Duration) UnmarshalYAML(node ast.Node) error {
	var s string
	if err := yaml.NodeToValue(node, &s); err != nil {
		return err
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		// Without s, which may be a password that slipped under a wrong key.
		return &yaml.SyntaxError{Message: "not a duration: write a number and its unit, such as 500ms, 5s or 1h", Token: node.GetToken()}
	}
	*d = Duration(v)
	return nil
}

// Std returns the duration as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String formats as the standard library does.
func (d Duration) String() string { return time.Duration(d).String() }
