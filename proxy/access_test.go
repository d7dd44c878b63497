package proxy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pghandoff/pgwire"
	"pghandoff/proxy/config"
)

func id(n uint32) *uint32 { return &n }

func TestRulesMatchInEveryKeyAndTheKernelsWordDecides(t *testing.T) {
	hostRoot, containerRoot := Peer{root: yes, PID: 1}, Peer{root: no, PID: 2}
	for name, c := range map[string]struct {
		rules []config.Rule
		peer  Peer
		want  bool
	}{
		"no rule, own user":              {nil, Peer{UID: 1000}, true},
		"no rule, root":                  {nil, hostRoot, true},
		"no rule, a container's root":    {nil, containerRoot, false},
		"no rule, stranger":              {nil, Peer{UID: 1001}, false},
		"uid":                            {[]config.Rule{{UID: id(7)}}, Peer{UID: 7}, true},
		"uid 0, a container's root":      {[]config.Rule{{UID: id(0)}}, containerRoot, false},
		"uid 0, root":                    {[]config.Rule{{UID: id(0)}}, hostRoot, true},
		"gid, primary":                   {[]config.Rule{{GID: id(8)}}, Peer{UID: 7, GID: 8}, true},
		"gid, supplementary":             {[]config.Rule{{GID: id(8)}}, Peer{UID: 7, GID: 7, grouped: yes, groups: []uint32{9, 8}}, true},
		"gid 0, a container's root":      {[]config.Rule{{GID: id(0)}}, containerRoot, false},
		"uid and gid, one wrong":         {[]config.Rule{{UID: id(7), GID: id(8)}}, Peer{UID: 7, GID: 9}, false},
		"second rule":                    {[]config.Rule{{UID: id(1)}, {UID: id(7)}}, Peer{UID: 7}, true},
		"overflow uid":                   {[]config.Rule{{UID: id(65534)}}, Peer{UID: 65534}, false},
		"overflow gid":                   {[]config.Rule{{GID: id(65534)}}, Peer{UID: 7, GID: 65534}, false},
		"any":                            {[]config.Rule{{Any: true}}, Peer{UID: 65534}, true},
		"any beside a uid restricts not": {[]config.Rule{{Any: true, UID: id(7)}}, Peer{UID: 8}, false},
		"user by name":                   {[]config.Rule{{User: "root"}}, hostRoot, true},
		"group by name":                  {[]config.Rule{{Group: "root"}}, hostRoot, true},
	} {
		a, err := newAccess(1000, c.rules)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := a.allows(&c.peer); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	for _, r := range []config.Rule{{User: "no-such-user"}, {Group: "no-such-group"}, {User: "root", UID: id(5)}, {Group: "root", GID: id(5)}} {
		if _, err := newAccess(0, []config.Rule{r}); err == nil {
			t.Errorf("%+v is accepted", r)
		}
	}
}

func TestIdThatIsNoNumberIsAnErrorAlsoWithoutOneToCompare(t *testing.T) {
	for _, found := range []string{"S-1-5-21", "", "4294967296"} {
		for _, given := range []*uint32{nil, id(5)} {
			if got, err := sameID("user", "u", found, given); err == nil {
				t.Errorf("%q: got %d", found, *got)
			}
		}
	}
}

func TestAllRulesThatCannotBeUsedAreReported(t *testing.T) {
	_, err := newAccess(0, []config.Rule{{User: "no-such-a"}, {Any: true}, {Group: "no-such-b"}})
	if err == nil || !strings.Contains(err.Error(), "allow[0]: there is no user") || !strings.Contains(err.Error(), "allow[2]: there is no group") {
		t.Errorf("got %v", err)
	}
}

func TestLimitsCountPerUid(t *testing.T) {
	l := newLimits(config.Limits{Leases: 2, Waiting: 1, Connections: 1})
	for range 2 {
		if err := l.take(holder{uid: 1}, limitLeases); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.take(holder{uid: 1}, limitLeases); failureOf(err).SQLState != codeTooMany || !strings.Contains(err.Error(), "limits.leases") {
		t.Errorf("got %v", err)
	}
	if err := l.take(holder{uid: 2}, limitLeases); err != nil {
		t.Errorf("another uid: %v", err)
	}
	if err := l.take(holder{uid: 1}, limitWaiting); err != nil {
		t.Errorf("another limit: %v", err)
	}
	l.give(holder{uid: 1}, limitWaiting)
	l.give(holder{uid: 1}, limitLeases)
	l.give(holder{uid: 1}, limitLeases)
	l.give(holder{uid: 2}, limitLeases)
	if len(l.of) != 0 {
		t.Errorf("%d uids are remembered that hold nothing", len(l.of))
	}
}

func TestSettingsOfStartupParameters(t *testing.T) {
	got, err := settingsOf([]pgwire.Parameter{{Name: "user", Value: "u"}, {Name: "database", Value: "d"}, {Name: "application_name", Value: "a"},
		{Name: "options", Value: "-c work_mem=1MB"}, {Name: "replication", Value: "off"}, {Name: "extra_float_digits", Value: "3"}}, []string{"extra_float_digits"})
	if err != nil || fmt.Sprint(got) != "[{work_mem 1MB} {application_name a}]" {
		t.Errorf("got %v, %v", got, err)
	}
	for name, code := range map[string]string{"role": codeNotSupported, "session_authorization": codeNotSupported, "ROLE": codeNotSupported,
		"a; drop table x": "42602", "": "42602", "a..b": "42602", "1a": "42602", strings.Repeat("a", 200): "42602"} {
		if _, err := settingsOf([]pgwire.Parameter{{Name: name, Value: "x"}}, nil); err == nil || failureOf(err).SQLState != code {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := settingsOf(make([]pgwire.Parameter, 300), []string{""}); err == nil {
		t.Error("300 parameters are accepted")
	}
}

func TestPasswordSources(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "p")
	os.WriteFile(file, []byte("from file\n"), 0o600)
	t.Setenv("PGHANDOFF_TEST_PW", "from env")
	for want, from := range map[string]config.Password{
		"from env": {Env: "PGHANDOFF_TEST_PW"}, "from file": {File: file}, "from value": {Value: config.NewSecret("from value")}, "": {},
		"from command": {Command: []string{"/bin/echo", "from command"}, Timeout: config.Duration(10 * time.Second)},
	} {
		s := passwordSource{from: from}
		if got, err := s.fetch(t.Context()); err != nil || got.of(config.Server{}).Reveal() != want {
			t.Errorf("%+v: %q, %v", from, got.of(config.Server{}).Reveal(), err)
		}
	}
	os.WriteFile(file, []byte("two\nlines\n"), 0o600)
	for _, from := range []config.Password{
		{Env: "PGHANDOFF_TEST_UNSET"}, {File: filepath.Join(dir, "none")}, {File: file}, {File: "/dev/zero"},
		{Command: []string{"/bin/false"}, Timeout: config.Duration(10 * time.Second)},
		{Command: []string{"/bin/sh", "-c", "echo hush; exit 3"}, Timeout: config.Duration(10 * time.Second)},
		{Command: []string{"/bin/cat", "/dev/zero"}, Timeout: config.Duration(10 * time.Second)},
		{Command: []string{"/bin/sleep", "60"}, Timeout: config.Duration(50 * time.Millisecond)},
	} {
		s := passwordSource{from: from}
		_, err := s.fetch(t.Context())
		var credential *credentialError
		if !errors.As(err, &credential) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%+v: %v", from, err)
		}
		if f := failureOf(err); strings.Contains(f.Message, dir) {
			t.Errorf("the function is told %q", f.Message)
		}
	}
}

func TestPasswordCommandIsCachedAsLongAsItSays(t *testing.T) {
	count := filepath.Join(t.TempDir(), "count")
	for cache, want := range map[time.Duration]int{0: 3, time.Hour: 1} {
		os.Remove(count)
		s := passwordSource{from: config.Password{Command: []string{"/bin/sh", "-c", "echo x >> " + count + "; echo token"}, Timeout: config.Duration(10 * time.Second), Cache: config.Duration(cache)}}
		for range 3 {
			if got, err := s.fetch(t.Context()); err != nil || got.of(config.Server{}).Reveal() != "token" {
				t.Fatal(err)
			}
		}
		b, _ := os.ReadFile(count)
		if got := strings.Count(string(b), "x"); got != want {
			t.Errorf("cached for %s: run %d times, want %d", cache, got, want)
		}
	}
}

func TestFailuresKeepTheServersWordsAndHideOurs(t *testing.T) {
	server := &pgwire.ServerError{Notice: pgwire.Notice{Severity: "FATAL", Code: "28P01", Message: "no way", Hint: "try"}}
	if f := failureOf(&dialError{"db:1", server}); f.SQLState != "28P01" || f.Message != "no way" || f.Hint != "try" {
		t.Errorf("got %+v", f)
	}
	if f := failureOf(errors.New("bug at 0xdeadbeef")); f.SQLState != codeInternal || strings.Contains(f.Error(), "deadbeef") {
		t.Errorf("got %+v", f)
	}
	many := errors.Join(&dialError{"a:1", errors.New("x")}, &dialError{"b:2", server})
	if f := failureOf(many); f.SQLState != "28P01" {
		t.Errorf("several servers: %+v", f)
	}
}
