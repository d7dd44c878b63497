package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
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

func TestSectionOfZerosIsNotTakenForAnAbsentOne(t *testing.T) {
	_, err := config.Parse([]byte(minimal + "    timeouts: {connect: 0s, login: 0s, drain: 0s}\nlimits: {leases: 0, waiting: 0, connections: 0}\n"))
	for _, key := range []string{"timeouts.connect", "timeouts.login", "limits.leases", "limits.connections"} {
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("got %v, want %s in it", err, key)
		}
	}
	c, err := config.Parse([]byte(minimal + "    password: {env: A, timeout: 0s}\n    timeouts: {drain: 0s}\n"))
	if err != nil || c.Routes["orders"].Password.Timeout != 0 || c.Routes["orders"].Timeouts.Drain != 0 || c.Routes["orders"].Timeouts.Login == 0 {
		t.Errorf("got %+v, %v", c, err)
	}
}

func TestSectionLeftEmptyHasItsDefaults(t *testing.T) {
	want, err := config.Parse([]byte(minimal + "sockets: [{path: /a, mode: \"0660\"}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := config.Parse([]byte(minimal + "    pool:\n    timeouts: {}\n    tls: ~\n    password:\nlimits:\nlog: {}\nsockets: [{path: /a}]\n"))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	if _, err := config.Parse([]byte("routes: {a: }")); err == nil || strings.Contains(err.Error(), "is not one of") {
		t.Errorf("a route left empty: %v", err)
	}
}

func TestSectionsCanBeSharedByAnchors(t *testing.T) {
	c, err := config.Parse([]byte("routes:\n  a: &a\n    servers: [x]\n    user: u\n    pool: &p {max: 7}\n  b: *a\n  c:\n    <<: *a\n    database: w\n  d: {servers: [x], user: u, pool: *p}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range c.Routes {
		if r.Pool.Max != 7 || r.Pool.MinIdle != 2 || r.TLS.Mode != "verify-full" || r.User == "" {
			t.Errorf("%s: %+v", name, r)
		}
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
		"engine left out":      {minimal + "engine: io_uring\n", "engine: io_uring is not built in"},
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
		"    password: {value: hunter2, valeu: x}\n",
		"    password: {value: [hunter2]}\n",
		"    password: {value: {hunter2: x}}\n",
		"    password:\n      value:\n        hunter2: x\n",
		"    password: {value: hunter2, value: hunter2}\n",
		"    password: {value: \"hunter2}\n",
		"    password: {value: 'hunter2}\n",
		"    password: {value: a, valu: hunter2}\n",
		"    password:\n      valu: hunter2\n",
		"    password:\n      pwd: hunter2\n",
		"    pwd: hunter2\n",
		"    password:\n      - hunter2\n",
		"    password: hunter2\n",
		"    password: [hunter2]\n",
		"    password: {hunter2}\n",
		"    password: {value: x,hunter2}\n",
		"    password: {value: x,hunter2,hunter2}\n",
		"    password:\n      ? hunter2\n      : x\n",
		"    password:\n      valu\n      hunter2: x\n",
		"    password:\n\thunter2: x\n",
		"    password: {timeout: hunter2}\n",
		"    password: {value: *hunter2}\n",
		"    <<: *hunter2\n",
		"    password: {value: @hunter2}\n",
		"    password: {value: |hunter2}\n",
		"    password: {value: !hunter2{ x}\n",
		"    password: {value: \"\\qhunter2\"}\n",
		"    pool: {max: hunter2}\n",
		"    allow: [{any: hunter2}]\n",
		"    allow: [{any: !!bool hunter2}]\n",
		"    servers: [\"postgres://app:hunter2@db/orders\"]\n",
		"    tls: hunter2\n",
		"    \"hunter2\n",
	} {
		if _, err := config.Parse([]byte(minimal + text)); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: got %v", text, err)
		}
	}
	number := minimal + "    password: {timeout: 48151623421234567890123}\n    pool: {max: 48151623421234567890123}\n"
	if _, err := config.Parse([]byte(number)); err == nil || strings.Contains(err.Error(), "4815") {
		t.Errorf("got %v", err)
	}
}

func TestMistakesShowTheirLineAndKey(t *testing.T) {
	for text, want := range map[string]string{
		"    password:\n      valu: x\n":            "line 7: unknown field \"valu\"\n  7 | valu:",
		"    pool: {max: many}\n":                   "line 6: this must be a whole number\n  6 | pool:",
		"    pool: {wait_timeout: 5}\n":             "line 6: not a duration: write a number and its unit, such as 500ms, 5s or 1h\n  6 | pool:",
		"    user: other\n":                         "line 6: mapping key \"user\" already defined at [5:5]\n  6 | user:",
		"    pool: {max: 9999999999999999999999}\n": "line 6: this number is too large or too small\n  6 | pool:",
	} {
		if _, err := config.Parse([]byte(minimal + text)); err == nil || err.Error() != want {
			t.Errorf("%q: got %v", text, err)
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
		"host and hostaddr": {"host=db hostaddr=10.0.0.1 user=app", "leave one out"},
		"address and host":  {"postgres://app@db/orders?hostaddr=10.0.0.1", "leave one out"},
		"bad timeout":       {"host=db user=app connect_timeout=5x", "number of seconds"},
		"bad port":          {"postgres://app@db:x/orders", "port from 1 to 65535"},
		"unsupported":       {"postgres://app@db/orders?sslcrldir=x", `"sslcrldir"`},
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

func TestMistakeInAURLDoesNotShowItsPassword(t *testing.T) {
	for _, u := range []string{
		"host=db password=my hunter2 user=app", "host=db password=my hunter2=x user=app", "host=db user=app password=my hunter2",
		"host=db password=my hunter2='x", "host=db user=app password='hunter2", "password=hunter2 user=app sslmode=maybe", "user=app password=it's hunter2 host=db",
		"postgres://app:hunter2%zz@db/orders", "postgres://app:p/hunter2@db/orders", "postgres://app:hunter2/x@db/orders", "postgres://app:p?hunter2@db/orders",
		"postgres://app:x?hunter2=%zz@db/orders", "postgres://app:p#/hunter2@db/orders", "postgres://app@db/orders?password=p&hunter2=x",
		"postgres://app@db/orders?password=p&hunter2=%zz", "postgres://app@db/orders?password=hunter2%", "postgres://app:hunter2@db:x/orders",
		"postgres://app:hunter2@db/orders?sslmode=maybe&channel_binding=x", "postgres://app:hunter2@[::1/orders", "postgres://app:[hunter2/@db/orders", "postgres://app:1/pghandoff?hunter2@x=1",
		"app:hunter2@db/orders", "hunter2",
	} {
		if _, err := config.FromURL(u, false, env("HOME", t.TempDir())); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v", u, err)
		}
	}
	// What is left of "1/hunter2@db" is taken for the database's name.
	_, err := config.FromURL("postgres://app:1/hunter2@db?sslmode=maybe", false, env("PGUSER", "app", "HOME", t.TempDir()))
	if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "URL: tls.mode") {
		t.Errorf("got %v", err)
	}
}

func TestHostaddrAloneIsTheServer(t *testing.T) {
	c, err := config.FromURL("user=app dbname=orders port=6000", false, env("PGHOSTADDR", "10.0.0.1", "HOME", t.TempDir()))
	if err != nil || fmt.Sprint(c.Routes["orders"].Servers) != "[10.0.0.1:6000]" {
		t.Errorf("got %+v, %v", c, err)
	}
}

func TestFromURLReadsServiceFileAndLeavesThePassfileToEachLogin(t *testing.T) {
	dir := t.TempDir()
	passfile, service := filepath.Join(dir, "pass"), filepath.Join(dir, "service")
	os.WriteFile(passfile, []byte("db:5432:orders:app:from-file\n"), 0o600)
	os.WriteFile(service, []byte("[prod]\nhost=db\nuser=app\ndbname=orders\nsslmode=verify-ca\n"), 0o600)
	c, err := config.FromURL("service=prod servicefile="+service+" passfile="+passfile, true, env("HOME", dir))
	if err != nil {
		t.Fatal(err)
	}
	if r := c.Routes["orders"]; r.Password.Passfile != passfile || !r.Password.Value.Empty() || r.TLS.Mode != "verify-ca" {
		t.Errorf("got %+v", r)
	}
	c, err = config.FromURL("service=prod password=given servicefile="+service+" passfile="+passfile, false, env("HOME", dir))
	if err != nil || c.Routes["orders"].Password.Passfile != "" {
		t.Errorf("a password beside the passfile: got %+v, %v", c, err)
	}
	if _, err := config.FromURL("user=app passfile=/nonexistent", false, env("HOME", dir)); err == nil {
		t.Error("a named passfile that does not exist is accepted")
	}
	os.WriteFile(filepath.Join(dir, ".pgpass"), nil, 0o600)
	c, err = config.FromURL("user=app", false, env("HOME", dir))
	if err != nil || c.Routes["app"].Password.Passfile != filepath.Join(dir, ".pgpass") {
		t.Errorf("~/.pgpass: got %+v, %v", c, err)
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
