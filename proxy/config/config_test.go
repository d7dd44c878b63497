package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"pghandoff/proxy/config"
)

const minimal = `
routes:
  orders:
    servers: [db.example.com]
    user: app
`

func TestDefaultsAreTheSafeOnes(t *testing.T) {
	c, err := config.Parse([]byte(minimal))
	if err != nil {
		t.Fatal(err)
	}
	r := c.Routes["orders"]
	if r.TLS.Mode != "verify-full" || r.TLS.ChannelBinding != "prefer" || r.Pool.Reset != "discard" || c.Socket.Mode != "0660" {
		t.Errorf("got %+v", r)
	}
	if r.Pool.Max != 20 || r.Pool.WaitTimeout.Std() != 5*time.Second || r.Timeouts.Login.Std() != 10*time.Second || c.Limits.Leases != 1000 {
		t.Errorf("got %+v", r)
	}
}

func TestZeroThatIsWrittenDownIsKept(t *testing.T) {
	c, err := config.Parse([]byte(minimal + "    pool: {min_idle: 0, wait_timeout: 0s, max_lifetime: 0s}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if p := c.Routes["orders"].Pool; p.MinIdle != 0 || p.WaitTimeout != 0 || p.MaxLifetime != 0 || p.Max != 20 {
		t.Errorf("got %+v", p)
	}
}

func TestMistakesAreShownWhereTheyStand(t *testing.T) {
	for name, c := range map[string]struct{ yaml, want string }{
		"unknown key":          {minimal + "    poool: {}\n", "line 6"},
		"unknown key, deep":    {minimal + "    pool: {mni_idle: 3}\n", "mni_idle"},
		"unknown key at top":   {"rotues: {}\n", "line 1"},
		"number for duration":  {minimal + "    pool: {wait_timeout: 5}\n", "500ms, 5s"},
		"wrong type":           {minimal + "    pool: {max: many}\n", "line 6"},
		"duplicate key":        {minimal + "    user: other\n", "line 6"},
		"no route":             {"{}", "routes: there must be at least one"},
		"no user":              {"routes: {a: {servers: [x]}}", "routes.a.user"},
		"console's name":       {strings.Replace(minimal, "orders", "pgbouncer", 1), "console"},
		"bad port":             {strings.Replace(minimal, "db.example.com", "db:99999", 1), "servers[0]"},
		"weak system roots":    {minimal + "    tls: {mode: require, roots: system}\n", "tls.roots"},
		"unknown identity":     {minimal + "    tls: {identity: nobody}\n", `no identity "nobody"`},
		"direct with prefer":   {minimal + "    tls: {mode: prefer, negotiation: direct}\n", "never falls back"},
		"two passwords":        {minimal + "    password: {env: A, file: /b}\n", "2 sources"},
		"empty rule":           {minimal + "    allow: [{}]\n", "allow[0]"},
		"min_idle over max":    {minimal + "    pool: {min_idle: 30}\n", "more than max"},
		"two documents":        {minimal + "---\nrun_dir: /x\n", "document"},
		"identity, two":        {minimal + "identities: {i: {file: {roots: r}, self: {common_name: a, directory: /b}}}", "two sources"},
		"identity, key lost":   {minimal + "identities: {i: {file: {cert: c}}}", "belong together"},
		"socket mode":          {minimal + "socket: {mode: rw}\n", "octal"},
		"tenant, wrong route":  {minimal + "sockets: [{path: /a, routes: [x]}]\n", `no route "x"`},
		"tenant, wrong folder": {minimal + "sockets: [{path: a}]\n", "absolute"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Parse([]byte(c.yaml))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestAllProblemsAreReportedAtOnce(t *testing.T) {
	_, err := config.Parse([]byte("routes: {a: {servers: [], tls: {mode: x}}, b: {servers: [x], user: u, pool: {max: 0}}}"))
	var problems config.Problems
	if !errors.As(err, &problems) || len(problems) < 4 {
		t.Fatalf("got %v", err)
	}
}

func TestMistakeNextToAPasswordDoesNotShowIt(t *testing.T) {
	for _, text := range []string{
		minimal + "    password: {value: hush-hush, valeu: x}\n",
		minimal + "    password: {value: [hush-hush]}\n",
		minimal + "    password: {value: hush-hush, value: hush-hush2}\n",
		minimal + "    password: {value: \"hush-hush}\n",
	} {
		if _, err := config.Parse([]byte(text)); err == nil || strings.Contains(err.Error(), "hush-hush") {
			t.Errorf("got %v", err)
		}
	}
}

func TestSecretShowsItselfInNoWay(t *testing.T) {
	s := config.NewSecret("hush-hush")
	type holder struct {
		S config.Secret
		P *config.Secret
	}
	h := holder{s, &s}
	var printed []string
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%10s", "%T %v"} {
		printed = append(printed, fmt.Sprintf(verb, s, s), fmt.Sprintf(verb, h, h), fmt.Sprintf(verb, &h, h), fmt.Sprintf(verb, []any{s, &s}, s))
	}
	j, _ := json.Marshal(h)
	y, _ := yaml.Marshal(h)
	printed = append(printed, string(j), string(y), fmt.Sprint(s), fmt.Sprintln(h), errors.Join(fmt.Errorf("%v", h)).Error())
	for _, p := range printed {
		if strings.Contains(p, "hush") || strings.Contains(p, fmt.Sprintf("%x", "hush")) {
			t.Errorf("printed %q", p)
		}
	}
	if s.Reveal() != "hush-hush" {
		t.Error("and yet it must be there")
	}
}

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func TestFromURL(t *testing.T) {
	home := t.TempDir()
	for name, c := range map[string]struct {
		url      string
		env      func(string) string
		servers  []string
		database string
		password string
		mode     string
	}{
		"URL":             {"postgres://app:p%40ss@db:6000/orders?sslmode=verify-ca", env(), []string{"db:6000"}, "orders", "p@ss", "verify-ca"},
		"plain":           {"postgresql://app@db/orders", env(), []string{"db:5432"}, "orders", "", "verify-full"},
		"hosts":           {"postgres://app@a:1,b:2,[::1]:3/orders", env(), []string{"a:1", "b:2", "[::1]:3"}, "orders", "", "verify-full"},
		"socket folder":   {"postgres://app@%2Fvar%2Frun/orders", env(), []string{"/var/run:5432"}, "orders", "", "verify-full"},
		"no database":     {"postgres://app@db", env(), []string{"db:5432"}, "app", "", "verify-full"},
		"keywords":        {`host=db port=6000 user=app dbname='my db' password='it\'s' sslmode=require`, env(), []string{"db:6000"}, "my db", "it's", "require"},
		"environment":     {"postgres:///orders", env("PGHOST", "db", "PGUSER", "app", "PGPASSWORD", "p", "PGSSLMODE", "verify-ca"), []string{"db:5432"}, "orders", "p", "verify-ca"},
		"URL before env":  {"postgres://app@db/orders?sslmode=require", env("PGSSLMODE", "disable"), []string{"db:5432"}, "orders", "", "require"},
		"two hosts, port": {"host=a,b port=7 user=app dbname=x", env(), []string{"a:7", "b:7"}, "x", "", "verify-full"},
	} {
		t.Run(name, func(t *testing.T) {
			getenv := func(n string) string {
				if n == "HOME" {
					return home
				}
				return c.env(n)
			}
			got, err := config.FromURL(c.url, false, getenv)
			if err != nil {
				t.Fatal(err)
			}
			r, ok := got.Routes[c.database]
			if !ok || fmt.Sprint(r.Servers) != fmt.Sprint(c.servers) || r.Password.Value.Reveal() != c.password || r.TLS.Mode != c.mode || r.User != "app" {
				t.Errorf("got %+v, password %q", got.Routes, r.Password.Value.Reveal())
			}
		})
	}
}

func TestFromURLRefuses(t *testing.T) {
	for name, c := range map[string]struct{ url, want string }{
		"no user":           {"postgres://db/orders", "names no user"},
		"unknown parameter": {"postgres://app@db/orders?sslmod=require", `"sslmod"`},
		"nonsense":          {"db.example.com", "name=value"},
		"open quote":        {"user='app", "no end"},
		"bad escape":        {"postgres://app:%zz@db/orders", "percent-encoded"},
		"bad mode":          {"postgres://app@db/orders?sslmode=maybe", "tls.mode"},
		"ports":             {"host=a,b,c port=1,2 user=app", "3 hosts and 2 ports"},
		"service":           {"service=nowhere user=app", "service"},
	} {
		if _, err := config.FromURL(c.url, false, env("HOME", t.TempDir())); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for _, u := range []string{"postgres://app:hush@db/orders", "user=app password=hush", "postgres://db/orders?user=app&password=hush"} {
		_, err := config.FromURL(u, true, env())
		if !errors.Is(err, config.ErrPasswordInArgument) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s as an argument: got %v", u, err)
		}
	}
}

func TestFromURLReadsPassfileAndServiceFile(t *testing.T) {
	dir := t.TempDir()
	passfile, service := filepath.Join(dir, "pass"), filepath.Join(dir, "service")
	os.WriteFile(passfile, []byte("db:5432:orders:app:from-file\n"), 0o600)
	os.WriteFile(service, []byte("[prod]\nhost=db\nuser=app\ndbname=orders\nsslmode=verify-ca\n"), 0o600)
	c, err := config.FromURL("service=prod servicefile="+service+" passfile="+passfile, true, env("HOME", dir))
	if err != nil {
		t.Fatal(err)
	}
	if r := c.Routes["orders"]; r.Password.Value.Reveal() != "from-file" || r.TLS.Mode != "verify-ca" {
		t.Errorf("got %+v", r)
	}
	os.Chmod(passfile, 0o644)
	if _, err := config.FromURL("service=prod servicefile="+service+" passfile="+passfile, true, env("HOME", dir)); err == nil || !strings.Contains(err.Error(), "chmod 0600") {
		t.Errorf("got %v", err)
	}
}

func FuzzFromURL(f *testing.F) {
	for _, s := range []string{"postgres://app:p@a:1,b:2/d?sslmode=require", "host=a user='b c' password=\\'", "postgres://[::1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strings.Contains(s, "service") || strings.Contains(s, "passfile") {
			t.Skip("would read files")
		}
		c, err := config.FromURL(s, false, env())
		if (c == nil) == (err == nil) {
			t.Fatalf("got %v, %v", c, err)
		}
	})
}
