package config

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgservicefile"
)

// ErrPasswordInArgument: every process of the host can read an argument.
var ErrPasswordInArgument = errors.New("the URL holds a password, and every process on this host can read an argument: give the URL in PGHANDOFF_URL, or the password in a PGPASSFILE or by passfile=")

// environment maps libpq's variables to its parameter names.
var environment = map[string]string{
	"PGHOST": "host", "PGHOSTADDR": "hostaddr", "PGPORT": "port", "PGDATABASE": "dbname", "PGUSER": "user", "PGPASSWORD": "password",
	"PGPASSFILE": "passfile", "PGSERVICE": "service", "PGSERVICEFILE": "servicefile", "PGSSLMODE": "sslmode",
	"PGSSLNEGOTIATION": "sslnegotiation", "PGSSLCRL": "sslcrl", "PGSSLROOTCERT": "sslrootcert", "PGSSLCERT": "sslcert", "PGSSLKEY": "sslkey",
	"PGCHANNELBINDING": "channel_binding", "PGSSLMINPROTOCOLVERSION": "ssl_min_protocol_version", "PGTARGETSESSIONATTRS": "target_session_attrs", "PGCONNECT_TIMEOUT": "connect_timeout",
}

// settings are libpq parameters by name.
type settings map[string]string

// FromURL makes a configuration with one route, named after its database, of a
// libpq URL ("postgres://…") or key/value string. Parameters that it does not
// name are taken as libpq takes them: service file, then environment (getenv),
// then ~/.postgresql/postgresql.crt and .key where they exist; the password
// also from a passfile, which is read at each login. Only the default differs: sslmode is verify-full.
// argument says that the string came from the command line, where a password is
// refused with [ErrPasswordInArgument].
func FromURL(s string, argument bool, getenv func(string) string) (*Config, error) {
	given, err := parseConnectionString(s)
	if err != nil {
		return nil, err
	}
	if argument && (given["password"] != "" || given["sslpassword"] != "") {
		return nil, ErrPasswordInArgument
	}
	all, err := given.complete(getenv)
	if err != nil {
		return nil, err
	}
	return all.config(getenv)
}

func parseConnectionString(s string) (settings, error) {
	if strings.HasPrefix(s, "postgres://") || strings.HasPrefix(s, "postgresql://") {
		return parseURL(s)
	}
	return parseKeywords(s)
}

// parseURL reads libpq's URL, whose host part may list several.
func parseURL(s string) (settings, error) {
	_, rest, _ := strings.Cut(s, "://")
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	out := settings{}
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, password, _ := strings.Cut(authority[:i], ":")
		for name, v := range map[string]string{"user": user, "password": password} {
			if err := out.unescape(name, v, url.PathUnescape); err != nil {
				return nil, err
			}
		}
		authority = authority[i+1:]
	}
	if err := out.hosts(authority); err != nil {
		return nil, err
	}
	path, query, _ := strings.Cut(tail, "?")
	if err := out.unescape("dbname", strings.TrimPrefix(path, "/"), url.PathUnescape); err != nil {
		return nil, err
	}
	for _, pair := range strings.Split(query, "&") {
		name, value, _ := strings.Cut(pair, "=")
		if name == "" {
			continue
		}
		if err := out.unescape(name, value, url.PathUnescape); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (s settings) unescape(name, value string, f func(string) (string, error)) error {
	v, err := f(value)
	if err != nil {
		return fmt.Errorf("URL: the value of %s is not percent-encoded as it should be", shown(name))
	}
	if v != "" {
		s[name] = v
	}
	return nil
}

func (s settings) hosts(authority string) error {
	var hosts, ports []string
	for _, h := range strings.Split(authority, ",") {
		host, port := h, ""
		if end := strings.IndexByte(h, ']'); end >= 0 {
			host, port = strings.TrimPrefix(h[:end], "["), strings.TrimPrefix(h[end+1:], ":")
		} else if i := strings.LastIndexByte(h, ':'); i >= 0 {
			host, port = h[:i], h[i+1:]
		}
		host, err := url.PathUnescape(host)
		if err != nil {
			return errors.New("URL: the host is not percent-encoded as it should be")
		}
		hosts, ports = append(hosts, host), append(ports, port)
	}
	if strings.Join(hosts, "") != "" {
		s["host"] = strings.Join(hosts, ",")
	}
	if strings.Join(ports, "") != "" {
		s["port"] = strings.Join(ports, ",")
	}
	return nil
}

// parseKeywords reads "name = value" pairs; a value with spaces stands in
// single quotes, and a backslash escapes a quote or a backslash.
func parseKeywords(s string) (settings, error) {
	out := settings{}
	for s = strings.TrimSpace(s); s != ""; s = strings.TrimSpace(s) {
		name, rest, ok := strings.Cut(s, "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" || strings.ContainsAny(name, " \t\n") {
			return nil, errors.New("neither a postgres:// URL nor name=value pairs: see the PostgreSQL documentation, \"Connection Strings\"")
		}
		value, after, err := keywordValue(strings.TrimLeft(rest, " \t\n"))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", shown(name), err)
		}
		if value != "" {
			out[name] = value
		}
		s = after
	}
	return out, nil
}

func keywordValue(s string) (value, rest string, err error) {
	quoted := strings.HasPrefix(s, "'")
	s = strings.TrimPrefix(s, "'")
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
		case quoted && c == '\'':
			return b.String(), s[i+1:], nil
		case !quoted && strings.IndexByte(" \t\n", c) >= 0:
			return b.String(), s[i:], nil
		default:
			b.WriteByte(c)
		}
	}
	if quoted {
		return "", "", errors.New("the quoted value has no end")
	}
	return b.String(), "", nil
}

// complete adds what the string leaves open, in libpq's order.
func (s settings) complete(getenv func(string) string) (settings, error) {
	env := settings{}
	for variable, name := range environment {
		if v := getenv(variable); v != "" {
			env[name] = v
		}
	}
	out := settings{}
	for name, v := range env {
		out[name] = v
	}
	service := s["service"]
	if service == "" {
		service = env["service"]
	}
	if service != "" {
		file := firstOf(s["servicefile"], env["servicefile"], filepath.Join(getenv("HOME"), ".pg_service.conf"))
		f, err := pgservicefile.ReadServicefile(file)
		if err != nil {
			return nil, fmt.Errorf("service %q: %w", service, err)
		}
		entry, err := f.GetService(service)
		if err != nil {
			return nil, fmt.Errorf("service %q: not in %s", service, file)
		}
		for name, v := range entry.Settings {
			out[name] = v
		}
	}
	for name, v := range s {
		out[name] = v
	}
	return out, nil
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

func (s settings) config(getenv func(string) string) (*Config, error) {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if !slices.Contains(known, name) && !slices.Contains(ignored, name) {
			return nil, fmt.Errorf("%s is not known here: leave it out; if it is the end of a password, put that in quotes ('…') or percent-encode it", shown(name))
		}
	}
	servers, err := s.servers()
	if err != nil {
		return nil, err
	}
	user := s["user"]
	database := firstOf(s["dbname"], user)
	if user == "" {
		return nil, errors.New("the URL names no user: write postgres://USER@HOST/DATABASE")
	}
	route := withDefaults[Route]()
	route.Servers, route.Database, route.User = servers, database, user
	for name, setting := range map[string]*string{"target_session_attrs": &route.TargetSessionAttrs, "sslmode": &route.TLS.Mode,
		"sslnegotiation": &route.TLS.Negotiation, "channel_binding": &route.TLS.ChannelBinding} {
		*setting = firstOf(s[name], *setting)
	}
	if v := s["ssl_min_protocol_version"]; v != "" {
		if route.TLS.MinVersion = strings.TrimPrefix(v, "TLSv"); v == "TLSv1" || v == "TLSv1.1" {
			route.TLS.MinVersion = "1.2" // what is older is not spoken at all
		}
	}
	if err := setConnectTimeout(route, s["connect_timeout"]); err != nil {
		return nil, err
	}
	c := withDefaults[Config]()
	s.identity(c, route, getenv)
	if err := s.password(&route.Password, getenv); err != nil {
		return nil, err
	}
	c.Routes = map[string]Route{database: *route}
	if _, err := c.validated(); err != nil {
		return nil, inURL(err, database)
	}
	return c, nil
}

// inURL names problems as they stand in a URL, where there is no route's name:
// what was taken for it may be the end of a password.
func inURL(err error, route string) error {
	var problems Problems
	if !errors.As(err, &problems) {
		return err
	}
	for i := range problems {
		rest, _ := strings.CutPrefix(problems[i].Key, "routes."+route)
		problems[i].Key = firstOf(strings.TrimPrefix(rest, "."), "dbname")
	}
	return fmt.Errorf("URL: %w", problems)
}

func setConnectTimeout(r *Route, seconds string) error {
	if seconds == "" {
		return nil
	}
	n, err := strconv.ParseUint(seconds, 10, 31)
	if err != nil {
		return errors.New("connect_timeout is not a number of seconds")
	}
	if n > 0 {
		r.Timeouts.Connect = Duration(n) * Duration(time.Second)
	}
	return nil
}

func (s settings) servers() ([]string, error) {
	if s["host"] != "" && s["hostaddr"] != "" {
		return nil, errors.New("host and hostaddr are both given, and connecting to one while verifying the other is not supported here: leave one out (certificates are verified against the one that stays)")
	}
	hosts, ports := strings.Split(firstOf(s["host"], s["hostaddr"], "localhost"), ","), strings.Split(s["port"], ",")
	if len(ports) != 1 && len(ports) != len(hosts) {
		return nil, fmt.Errorf("%d hosts and %d ports: give one port, or one for each host", len(hosts), len(ports))
	}
	out := make([]string, len(hosts))
	for i, h := range hosts {
		port := firstOf(ports[min(i, len(ports)-1)], "5432")
		if strings.Contains(h, ":") && !strings.HasPrefix(h, "/") {
			h = "[" + h + "]"
		}
		out[i] = h + ":" + port
		if _, err := ParseServer(out[i]); err != nil {
			return nil, fmt.Errorf("the URL's server %d %w; a / : @ or ? in a password must be percent-encoded", i+1, err)
		}
	}
	return out, nil
}

// identity turns sslcert, sslkey and sslrootcert into an identity of files.
func (s settings) identity(c *Config, r *Route, getenv func(string) string) {
	home := filepath.Join(getenv("HOME"), ".postgresql")
	cert, key := s["sslcert"], s["sslkey"]
	if cert == "" && exists(filepath.Join(home, "postgresql.crt")) {
		cert = filepath.Join(home, "postgresql.crt")
	}
	if cert != "" && key == "" {
		key = filepath.Join(home, "postgresql.key")
	}
	roots := s["sslrootcert"]
	if roots == "" && exists(filepath.Join(home, "root.crt")) {
		roots = filepath.Join(home, "root.crt")
	}
	r.TLS.Roots = roots
	if r.TLS.CRL = s["sslcrl"]; r.TLS.CRL == "" && roots != "" && roots != "system" && exists(filepath.Join(home, "root.crl")) {
		r.TLS.CRL = filepath.Join(home, "root.crl")
	}
	if cert != "" && r.TLS.Mode != "disable" {
		c.Identities = map[string]Identity{"url": {File: &FileIdentity{Cert: cert, Key: key}}}
		r.TLS.Identity = "url"
	}
}

// password takes the one given, else the passfile, as a source to be read at
// each login. As with libpq, a passfile that others can read is not used; here
// that is an error, since a later refusal by the server would not tell why.
func (s settings) password(p *Password, getenv func(string) string) error {
	if s["password"] != "" {
		p.Value = NewSecret(s["password"])
		return nil
	}
	path := firstOf(s["passfile"], filepath.Join(getenv("HOME"), ".pgpass"))
	info, err := os.Stat(path)
	switch {
	case err != nil && s["passfile"] != "":
		return fmt.Errorf("passfile: %w", err)
	case err != nil:
		return nil
	case info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("passfile %s can be read by others: chmod 0600 it", path)
	}
	p.Passfile = path
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
