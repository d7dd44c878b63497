package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Problem is one thing that is wrong, at the key where it stands.
type Problem struct{ Key, Text string }

// Problems are all the things that are wrong with a configuration.
type Problems []Problem

// Error lists every problem, one a line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, q := range p {
		lines[i] = q.Key + ": " + q.Text
	}
	return strings.Join(lines, "\n")
}

type validator struct{ problems Problems }

func (v *validator) add(key, format string, args ...any) {
	v.problems = append(v.problems, Problem{Key: key, Text: fmt.Sprintf(format, args...)})
}

func (v *validator) oneOf(key, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		v.add(key, "%q is not one of %s", value, strings.Join(allowed, ", "))
	}
}

func (v *validator) notNegative(key string, d Duration) {
	if d < 0 {
		v.add(key, "must not be negative")
	}
}

func (v *validator) atLeast(key string, n, least int) {
	if n < least {
		v.add(key, "must be at least %d, is %d", least, n)
	}
}

// reservedRoutes are the console's database names.
var reservedRoutes = []string{"pghandoff", "pgbouncer"}

func (c *Config) validate() Problems {
	v := new(validator)
	v.mode("socket.mode", c.Socket.Mode)
	v.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	v.oneOf("log.format", c.Log.Format, "json", "console")
	v.atLeast("loops", c.Loops, 0)
	if c.Engine == "io_uring" {
		v.add("engine", "io_uring is not built in, as it was measured and gains too little (docs/performance.md): write auto or epoll")
	} else {
		v.oneOf("engine", c.Engine, "auto", "epoll")
	}
	v.atLeast("limits.leases", c.Limits.Leases, 1)
	v.atLeast("limits.waiting", c.Limits.Waiting, 0)
	v.atLeast("limits.connections", c.Limits.Connections, 1)
	for i, f := range c.Sockets {
		v.folder(fmt.Sprintf("sockets[%d]", i), f, c.Routes)
	}
	v.listen(c.Listen, c.Identities)
	for _, name := range slices.Sorted(maps.Keys(c.Identities)) {
		v.identity("identities."+name, c.Identities[name])
	}
	if len(c.Routes) == 0 {
		v.add("routes", "there must be at least one")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Routes)) {
		v.route("routes."+name, name, c.Routes[name], c.Identities)
	}
	return v.problems
}

var octal = regexp.MustCompile(`^0?[0-7]{3}$`)

func (v *validator) mode(key, mode string) {
	if !octal.MatchString(mode) {
		v.add(key, "%q is not an octal mode such as \"0660\"", mode)
	}
}

func (v *validator) folder(key string, f Folder, routes map[string]Route) {
	if !filepath.IsAbs(f.Path) {
		v.add(key+".path", "must be an absolute path, is %q", f.Path)
	}
	v.mode(key+".mode", f.Mode)
	for _, r := range f.Routes {
		if _, ok := routes[r]; !ok {
			v.add(key+".routes", "there is no route %q", r)
		}
	}
	v.rules(key+".allow", f.Allow)
}

func (v *validator) listen(l Listen, identities map[string]Identity) {
	if l.Address == "" {
		if l.Identity+l.ClientRoots+l.Users != "" {
			v.add("listen.address", "is missing: host:port, or :port for every address of this host")
		}
		return
	}
	if _, port, err := net.SplitHostPort(l.Address); err != nil || port == "" {
		v.add("listen.address", "is not host:port, nor :port")
	}
	id, ok := identities[l.Identity]
	switch {
	case l.Identity == "":
		v.add("listen.identity", "is missing: functions verify the certificate of an entry of identities")
	case !ok:
		v.add("listen.identity", "there is no identity %q", l.Identity)
	case id.File == nil || id.File.Cert == "":
		v.add("listen.identity", "identity %q has no certificate for a server: its source must be file, with cert and key", l.Identity)
	}
	if l.ClientRoots == "" && l.Users == "" {
		v.add("listen", "needs client_roots, users, or both: without them everybody would be let in")
	}
	v.oneOf("listen.min_version", l.MinVersion, "1.2", "1.3")
}

func (v *validator) identity(key string, id Identity) {
	v.notNegative(key+".drain_window", id.DrainWindow)
	sources := 0
	for _, there := range []bool{id.File != nil, id.Vault != nil, id.Exec != nil, id.Self != nil} {
		if there {
			sources++
		}
	}
	switch {
	case sources == 0:
		v.add(key, "needs a source: file, vault, exec or self")
	case sources > 1:
		v.add(key, "has two sources, may have one")
	case id.Exec != nil:
		v.issued(key+".exec", id.Exec.CommonName, id.Exec.Storage)
		if len(id.Exec.Command) == 0 {
			v.add(key+".exec.command", "is missing: the program that signs")
		}
	case id.Vault != nil:
		v.issued(key+".vault", id.Vault.CommonName, id.Vault.Storage)
		v.vault(key+".vault", id.Vault)
	case id.File != nil:
		f := id.File
		if (f.Cert == "") != (f.Key == "") {
			v.add(key+".file", "cert and key belong together: one of them is missing")
		}
		if f.Cert == "" && f.Roots == "" {
			v.add(key+".file", "names neither a certificate nor roots")
		}
	case id.Self.CommonName == "" || id.Self.Directory == "":
		v.add(key+".self", "needs common_name and directory")
	}
}

// issued checks what all sources have that keep a certificate which was signed for
// them.
func (v *validator) issued(key, commonName, storage string) {
	if commonName == "" {
		v.add(key+".common_name", "is missing: usually the database role")
	}
	if !filepath.IsAbs(storage) {
		v.add(key+".storage", "must be an absolute path, is %q", storage)
	}
}

func (v *validator) vault(key string, i *VaultIdentity) {
	u, err := url.Parse(i.Address)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		v.add(key+".address", "is not a URL such as https://vault.example.com:8200")
	} else if u.Scheme == "http" && u.Hostname() != "127.0.0.1" && u.Hostname() != "localhost" && u.Hostname() != "::1" {
		v.add(key+".address", "must be https: the token would be readable on the network")
	}
	if i.Role == "" || i.Mount == "" {
		v.add(key+".role", "role and mount are needed")
	}
	if (i.TokenFile == "") == (i.KubernetesRole == "") {
		v.add(key, "needs token_file or kubernetes_role, not both")
	}
	v.notNegative(key+".ttl", i.TTL)
}

func (v *validator) route(key, name string, r Route, identities map[string]Identity) {
	switch {
	case name == "" || strings.ContainsAny(name, "\x00\n"):
		v.add(key, "is not a usable name")
	case slices.Contains(reservedRoutes, name):
		v.add(key, "the name belongs to the console: choose another")
	}
	if len(r.Servers) == 0 {
		v.add(key+".servers", "there must be at least one")
	}
	for i, s := range r.Servers {
		if _, err := ParseServer(s); err != nil {
			v.add(fmt.Sprintf("%s.servers[%d]", key, i), "%v", err)
		}
	}
	v.oneOf(key+".target_session_attrs", r.TargetSessionAttrs, "any", "read-write", "read-only", "primary", "standby", "prefer-standby")
	if r.User == "" {
		v.add(key+".user", "is missing: the database role to log in as")
	}
	v.password(key+".password", r.Password)
	v.tls(key+".tls", r.TLS, identities)
	v.pool(key+".pool", r.Pool)
	for name, d := range map[string]Duration{"connect": r.Timeouts.Connect, "login": r.Timeouts.Login} {
		if d <= 0 {
			v.add(key+".timeouts."+name, "must be more than 0")
		}
	}
	v.notNegative(key+".timeouts.drain", r.Timeouts.Drain)
	v.notNegative(key+".timeouts.idle_in_transaction", r.Timeouts.IdleInTransaction)
	v.notNegative(key+".timeouts.idle_lease", r.Timeouts.IdleLease)
	v.notNegative(key+".pool.lease_timeout", r.Pool.LeaseTimeout)
	v.rules(key+".allow", r.Allow)
}

func (v *validator) password(key string, p Password) {
	n := 0
	for _, given := range []bool{p.Env != "", p.File != "", p.Passfile != "", len(p.Command) > 0, !p.Value.Empty()} {
		if given {
			n++
		}
	}
	if n > 1 {
		v.add(key, "has %d sources, may have one of env, file, passfile, command, value", n)
	}
	if p.Timeout <= 0 && len(p.Command) > 0 {
		v.add(key+".timeout", "must be more than 0")
	}
	v.notNegative(key+".cache", p.Cache)
}

func (v *validator) tls(key string, t TLS, identities map[string]Identity) {
	v.oneOf(key+".mode", t.Mode, "verify-full", "verify-ca", "require", "prefer", "allow", "disable")
	v.oneOf(key+".negotiation", t.Negotiation, "postgres", "direct")
	v.oneOf(key+".channel_binding", t.ChannelBinding, "prefer", "require", "disable")
	v.oneOf(key+".min_version", t.MinVersion, "1.2", "1.3")
	v.oneOf(key+".handshaker", t.Handshaker, "std", "utls")
	v.oneOf(key+".expired", t.Expired, "keep", "close")
	if _, ok := identities[t.Identity]; t.Identity != "" && !ok {
		v.add(key+".identity", "there is no identity %q", t.Identity)
	}
	weak := t.Mode == "disable" || t.Mode == "allow" || t.Mode == "prefer"
	if t.Negotiation == "direct" && weak {
		v.add(key+".negotiation", "direct needs mode require or stronger: it never falls back")
	}
	if t.Roots == "system" && t.Mode != "verify-full" {
		v.add(key+".roots", "system is for mode verify-full only: anyone can get a certificate of a public authority")
	}
	if t.ChannelBinding == "require" && t.Mode == "disable" {
		v.add(key+".channel_binding", "require needs TLS")
	}
}

func (v *validator) pool(key string, p Pool) {
	v.atLeast(key+".min_idle", p.MinIdle, 0)
	v.atLeast(key+".max", p.Max, 1)
	if p.MinIdle > p.Max {
		v.add(key+".min_idle", "is more than max (%d > %d)", p.MinIdle, p.Max)
	}
	v.notNegative(key+".wait_timeout", p.WaitTimeout)
	v.notNegative(key+".wait_notice", p.WaitNotice)
	v.notNegative(key+".max_lifetime", p.MaxLifetime)
	v.notNegative(key+".idle_timeout", p.IdleTimeout)
	v.oneOf(key+".reset", p.Reset, "discard", "close", "none")
}

func (v *validator) rules(key string, rules []Rule) {
	for i, r := range rules {
		if r == (Rule{}) {
			v.add(fmt.Sprintf("%s[%d]", key, i), "has no key; `any: true` would let everybody in")
		}
	}
}

// Server is one address of a route.
type Server struct {
	// Host is a DNS name, an IP address, or, with Unix, the folder of a socket.
	Host string
	Port uint16
	Unix bool
}

var errNotServer = errors.New("is not host:port with a port from 1 to 65535")

// ParseServer reads "host:port", "host", "[v6]:port" or the absolute path of a
// folder, which may be followed by ":port". Errors do not quote s: a whole URL,
// password included, may have been written there.
func ParseServer(s string) (Server, error) {
	host, port := s, "5432"
	switch {
	case strings.HasPrefix(s, "/"):
		if i := strings.LastIndexByte(s, ':'); i > strings.LastIndexByte(s, '/') {
			host, port = s[:i], s[i+1:]
		}
	case strings.HasPrefix(s, "[") || strings.Count(s, ":") == 1:
		h, p, err := net.SplitHostPort(s)
		if err != nil {
			if h, ok := strings.CutPrefix(s, "["); ok && strings.HasSuffix(h, "]") {
				host = strings.TrimSuffix(h, "]")
				break
			}
			return Server{}, errNotServer
		}
		host, port = h, p
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || host == "" {
		return Server{}, errNotServer
	}
	return Server{Host: host, Port: uint16(n), Unix: strings.HasPrefix(host, "/")}, nil
}

// String returns the address as it would be dialled.
func (s Server) String() string {
	if s.Unix {
		return fmt.Sprintf("%s/.s.PGSQL.%d", s.Host, s.Port)
	}
	return net.JoinHostPort(s.Host, strconv.Itoa(int(s.Port)))
}
