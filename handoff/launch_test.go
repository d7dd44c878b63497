package handoff_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pghandoff/handoff"
	"pghandoff/handoff/handofftest"
)

// The tests start this binary again in two roles: "launch" calls Launch with the configuration in the environment, and
// becomes the binary in role "probe", which tells what it found.
const (
	envRole   = "HANDOFF_TEST_ROLE"
	envConfig = "HANDOFF_TEST_CONFIG"
)

type launch struct {
	handoff.LaunchConfig
	Busy bool // the process has opened files of its own before
}

func TestMain(m *testing.M) {
	switch os.Getenv(envRole) {
	case "launch":
		roleLaunch()
	case "probe":
		roleProbe()
	case "serve":
		roleServe()
	}
	os.Exit(m.Run())
}

func roleLaunch() {
	var c launch
	if err := json.Unmarshal([]byte(os.Getenv(envConfig)), &c); err != nil {
		panic(err)
	}
	if c.Busy {
		for range 3 {
			if _, err := os.Open("/dev/null"); err != nil {
				panic(err)
			}
		}
	}
	if err := os.Setenv(envRole, "probe"); err != nil {
		panic(err)
	}
	c.Env = os.Environ()
	c.Warn = os.Stderr
	err := handoff.Launch(c.LaunchConfig)
	fmt.Fprintln(os.Stderr, err)
	var e *handoff.ExitError
	if errors.As(err, &e) {
		os.Exit(e.Code)
	}
	os.Exit(99)
}

func roleProbe() {
	for _, name := range []string{handoff.EnvFDs, handoff.EnvControl, handoff.EnvState, handoff.EnvReply, "PGHOST", "PGDATABASE",
		"PGUSER", "PGHANDOFF_URL"} {
		fmt.Printf("%s=%s\n", name, os.Getenv(name))
	}
	leases, err := handoff.Inherited()
	fmt.Println("inherited", len(leases), err)
	for _, l := range leases {
		_, err := fmt.Fprintf(l.Conn(), "hello from %s", l.ID)
		fmt.Println(l.ID, l.State, l.Secret == 0, l.Parameters["server_version"], err, l.Cancel(context.Background()))
	}
	_, err = handoff.Inherited()
	fmt.Println("again", errors.Is(err, handoff.ErrNoneInherited), os.Getenv(handoff.EnvFDs) == "")
	for _, l := range leases {
		fmt.Println("close", l.Close())
	}
	os.Exit(0)
}

// run starts a launcher; args nil means that it becomes the probe.
func run(t *testing.T, c launch, extra []*os.File, env ...string) (stdout, stderr string, code int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if c.Args == nil {
		c.Args = []string{self}
	}
	config, err := json.Marshal(struct {
		Socket, Database, User string
		State                  handoff.State
		Count, FirstFD         int
		Args                   []string
		ServerUID              *int
		Busy                   bool
	}{c.Socket, c.Database, c.User, c.State, c.Count, c.FirstFD, c.Args, c.ServerUID, c.Busy})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), envRole + "=launch", envConfig + "=" + string(config)}, env...)
	cmd.ExtraFiles = extra
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

func wantLines(t *testing.T, output string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains("\n"+output, "\n"+line) {
			t.Errorf("no line %q in\n%s", line, output)
		}
	}
}

// Proves that a program started by Launch finds its connections on descriptors 3 and 4 and the one that acquired them on
// 5, all of them working.
func TestProgramFindsItsConnections(t *testing.T) {
	b := handofftest.NewFake(t)
	socket := handofftest.Listen(t, b)
	out, errOut, code := run(t, launch{LaunchConfig: handoff.LaunchConfig{Socket: socket, Database: "orders", User: "app",
		State: handoff.Ready, Count: 2}}, nil, "PGHANDOFF_URL=postgres://secret")
	if code != 0 || errOut != "" {
		t.Fatalf("exit code %d, standard error %q", code, errOut)
	}
	wantLines(t, out, "PGHANDOFF_FDS=3,4\n", "PGHANDOFF_CONTROL_FD=5\n", "PGHANDOFF_STATE=ready\n",
		`PGHANDOFF_REPLY=[{"v":1,"ok":true,"lease":"lease-1","database":"orders","transport":"bridge","state":"ready","tx":"I",`+
			`"pid":1,"parameters":{"server_version":"17.2"}},{"v":1,`, "PGHOST="+filepath.Dir(socket)+"\n",
		"PGDATABASE=orders\n", "PGUSER=app\n", "PGHANDOFF_URL=\n", "inherited 2 <nil>\n",
		"lease-1 ready true 17.2 <nil> <nil>\n", "lease-2 ready true 17.2 <nil> <nil>\n", "again true true\n", "close <nil>\nclose <nil>\n")
	for _, id := range []string{"lease-1", "lease-2"} {
		buf := make([]byte, 100)
		if n, err := b.DaemonEnd(id).Read(buf); err != nil || string(buf[:n]) != "hello from "+id {
			t.Errorf("got %q, %v", buf[:n], err)
		}
		if got := <-b.Claims; got != "cancel "+id+" owner=true secret=none" {
			t.Error(got)
		}
	}
}

func TestDescriptorsInUseByTheLauncherItselfAreFreed(t *testing.T) {
	b := handofftest.NewFake(t)
	out, errOut, code := run(t, launch{Busy: true, LaunchConfig: handoff.LaunchConfig{Socket: handofftest.Listen(t, b), Database: "orders"}}, nil)
	if strings.Contains(errOut, "in use by pghandoff itself") {
		t.Skip("unshare is forbidden here (a container's seccomp profile): run this test outside of it")
	}
	if code != 0 {
		t.Fatalf("exit code %d, standard error %q", code, errOut)
	}
	wantLines(t, out, "PGHANDOFF_FDS=3\n", "lease-1 startup true 17.2 <nil> <nil>\n")
}

func TestOtherDescriptorsCanBeChosen(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	b := handofftest.NewFake(t)
	c := launch{LaunchConfig: handoff.LaunchConfig{Socket: handofftest.Listen(t, b), Database: "orders"}}
	_, errOut, code := run(t, c, []*os.File{null})
	if code != handoff.ExitUsage || !strings.Contains(errOut, "descriptor 3 is open already") || len(b.Asked()) != 0 {
		t.Errorf("exit code %d, %q, %d requests", code, errOut, len(b.Asked()))
	}
	c.FirstFD = 20
	out, errOut, code := run(t, c, []*os.File{null})
	if code != 0 {
		t.Fatalf("exit code %d, %q", code, errOut)
	}
	wantLines(t, out, "PGHANDOFF_FDS=20\n", "PGHANDOFF_CONTROL_FD=21\n", "lease-1 startup true 17.2 <nil> <nil>\n")
}

func TestLaunchExitCodes(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"plain": 0o644, "script": 0o755} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("exit 42\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	b := handofftest.NewFake(t)
	good, stranger := handofftest.Listen(t, b), os.Geteuid()+1
	cases := map[string]struct {
		config handoff.LaunchConfig
		code   int
		says   string
		calls  int
	}{
		"not found on PATH": {handoff.LaunchConfig{Args: []string{"no-such-command"}}, 127, "command not found", 0},
		"no such path":      {handoff.LaunchConfig{Args: []string{dir + "/none"}}, 127, "no such file", 0},
		"not executable":    {handoff.LaunchConfig{Args: []string{dir + "/plain"}}, 126, "cannot be run", 0},
		"a folder":          {handoff.LaunchConfig{Args: []string{dir}}, 126, "cannot be run", 0},
		"no command":        {handoff.LaunchConfig{Args: []string{}}, 2, "no command", 0},
		"bad first":         {handoff.LaunchConfig{FirstFD: 2}, 2, "first descriptor 2", 0},
		"bad count":         {handoff.LaunchConfig{Count: -1}, 2, "from 1 to", 0},
		"bad state":         {handoff.LaunchConfig{State: "steady"}, 2, "state", 0},
		"refused":           {handoff.LaunchConfig{Database: "denied"}, 1, "not you: be another (SQLSTATE 28000)", 1},
		"no route":          {handoff.LaunchConfig{Database: ""}, 2, "3D000", 1},
		"unreachable":       {handoff.LaunchConfig{Socket: dir + "/s"}, 3, "is it running?", 0},
		"stranger":          {handoff.LaunchConfig{ServerUID: &stranger}, 3, "not the daemon", 0},
		"run by the shell":  {handoff.LaunchConfig{Args: []string{dir + "/script"}}, 42, "", 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			before := len(b.Asked())
			if c.config.Socket == "" {
				c.config.Socket = good
			}
			if c.config.Database == "" && name != "no route" {
				c.config.Database = "orders"
			}
			_, errOut, code := run(t, launch{LaunchConfig: c.config}, nil)
			calls := len(b.Asked()) - before
			if code != c.code || !strings.Contains(errOut, c.says) || calls != c.calls {
				t.Errorf("exit code %d, %q, %d requests; want %d, %q, %d", code, errOut, calls, c.code, c.says, c.calls)
			}
		})
	}
}

func TestVariablesOfOthersAreLeftAlone(t *testing.T) {
	b := handofftest.NewFake(t)
	out, errOut, code := run(t, launch{LaunchConfig: handoff.LaunchConfig{Socket: handofftest.Listen(t, b), Database: "orders"}}, nil, "PGUSER=me")
	if code != 0 || strings.Count(errOut, "\n") != 1 || !strings.Contains(errOut, "PGUSER is set already") {
		t.Errorf("exit code %d, %q", code, errOut)
	}
	wantLines(t, out, "PGHOST=\n", "PGDATABASE=\n", "PGUSER=me\n")
	if calls := b.Asked(); calls[0].User != "me" {
		t.Errorf("asked as %q", calls[0].User)
	}
}

func TestInheritedRefusesWhatDoesNotFit(t *testing.T) {
	near, far := mustPair(t)
	defer func() { _ = near.Close(); _ = far.Close() }()
	open := fmt.Sprint(near.Fd())
	for name, c := range map[string]struct{ fds, control, reply, says string }{
		"nothing":             {"", "", "", "no connection was handed"},
		"words":               {"three", "", "", "descriptor numbers"},
		"closed":              {"9999", "", "", "not open here"},
		"closed control":      {open, "9999", "", "not open here"},
		"two controls":        {open, open + "," + open, "", "one descriptor number"},
		"too few replies":     {open, "", "[]", "0 replies for 1"},
		"refusal":             {open, "", `[{"v":1,"ok":false}]`, "one granting reply"},
		"malformed reply":     {open, "", `[{]`, EnvReplyName},
		"something behind it": {open, "", `[{"v":1,"ok":true,"lease":"l","transport":"bridge","state":"ready"}]x`, "follows"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(handoff.EnvFDs, c.fds)
			t.Setenv(handoff.EnvControl, c.control)
			t.Setenv(handoff.EnvReply, c.reply)
			if leases, err := handoff.Inherited(); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %d leases, %v; want %q", len(leases), err, c.says)
			}
		})
	}
}

func TestInheritedControlIsASocketInTheUnixDomain(t *testing.T) {
	before := openDescriptors(t)
	for name, domain := range map[string]int{"no socket": -1, "no connection to pghandoff": unix.AF_INET} {
		near, far := mustPair(t)
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY, 0)
		if domain >= 0 {
			_ = unix.Close(fd)
			fd, err = unix.Socket(domain, unix.SOCK_STREAM, 0)
		}
		lease, dupErr := unix.Dup(int(near.Fd()))
		if err := errors.Join(err, dupErr, near.Close(), far.Close()); err != nil {
			t.Fatal(err)
		}
		t.Setenv(handoff.EnvFDs, fmt.Sprint(lease))
		t.Setenv(handoff.EnvControl, fmt.Sprint(fd))
		if _, err := handoff.Inherited(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want %q", err, name)
		}
	}
	if after := openDescriptors(t); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// EnvReplyName is what an error about the variable begins with.
const EnvReplyName = handoff.EnvReply + ": "
