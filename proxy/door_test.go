package proxy

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pghandoff/proxy/config"
)

func TestRunDirectoryThatIsALinkIsRefused(t *testing.T) {
	dir := t.TempDir()
	real, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
	os.Mkdir(real, 0o755)
	os.Symlink(real, link)
	os.Symlink(filepath.Join(dir, "nowhere"), filepath.Join(dir, "dangling"))
	for _, path := range []string{link, link + "/", filepath.Join(dir, "dangling")} {
		if err := makeRunDir(path); err == nil || !strings.Contains(err.Error(), "symbolic link") {
			t.Errorf("%s: got %v", path, err)
		}
	}
	for _, path := range []string{real, real + "/", filepath.Join(dir, "new")} {
		if err := makeRunDir(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestControlDirectoryBelowOneThatFunctionsSeeIsRefused(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, name := range []string{"run", "tenant", "elsewhere"} {
		os.Mkdir(name, 0o755)
	}
	os.Symlink("run", "link")
	os.Symlink("../run", "elsewhere/back")
	for _, path := range []string{
		"run", "run/control", dir + "/run/control", "./run/../run/control", "link/control", "link/new/control", dir + "/link/control/",
		"elsewhere/back/control", "tenant/control", dir + "/tenant/a/b",
	} {
		for _, runDir := range []string{"run", dir + "/run", "link", dir + "/elsewhere/back", "run/"} {
			c, err := openControlDir(path, runDir, "tenant", dir+"/not-yet")
			if err == nil || !strings.Contains(err.Error(), "lies below") {
				t.Errorf("control directory %s with run directory %s: got %v", path, runDir, err)
			}
			if c != nil {
				c.close()
			}
		}
	}
	if _, err := openControlDir("not-yet/control", "run", dir+"/not-yet"); err == nil || !strings.Contains(err.Error(), "lies below") {
		t.Errorf("below a folder that does not exist yet: got %v", err)
	}
	if _, err := os.Stat("run/control"); err == nil {
		t.Error("a refused control directory was made")
	}
	os.Symlink("loop", "loop")
	if _, err := openControlDir("loop/control", "run"); err == nil {
		t.Error("a control directory that cannot be resolved is accepted")
	}
}

func TestControlDirectoryBesideTheRunDirectoryIsAccepted(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	os.Mkdir("run", 0o755)
	for _, path := range []string{"run.control", dir + "/run.other", "runs", "other/"} {
		c, err := openControlDir(path, "run", dir+"/tenant", "missing/deep")
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		c.close()
	}
}

// Drivers that ask the kernel who their peer is send cancel requests to that name.
func TestSocketsAreBoundUnderTheirOwnNames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := bind(path, 0o640, os.Getgid())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := c.RemoteAddr().String(); got != path {
		t.Errorf("the kernel calls it %s", got)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestErrorsTellWhatIsTakenFromWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	control := filepath.Join(dir, "run.control")
	c, err := openControlDir(control, filepath.Join(dir, "run"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if _, err := openControlDir(control, filepath.Join(dir, "run")); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "is running") {
		t.Errorf("second daemon: got %v", err)
	}
	l, err := bind(filepath.Join(dir, "s"), 0o600, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = bind(filepath.Join(dir, "s"), 0o600, -1)
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "serves") {
		t.Errorf("second socket: got %v", err)
	}
	if _, err = bind(filepath.Join(dir, "none", "s"), 0o600, -1); !errors.Is(err, ErrUnavailable) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: got %v", err)
	}
	if _, err = bind(filepath.Join(dir, strings.Repeat("x", 108)), 0o600, -1); err == nil || errors.Is(err, ErrUnavailable) {
		t.Errorf("name too long: got %v", err)
	}
	if _, err = openControlDir(filepath.Join(dir, "run"), filepath.Join(dir, "run")); errors.Is(err, ErrUnavailable) {
		t.Errorf("wrong folder: got %v", err)
	}
}

func TestCheckReportsEveryNameThatThisHostLacks(t *testing.T) {
	cfg, err := config.Parse([]byte(`
socket: {group: no-such-a}
sockets:
  - {path: /a, group: no-such-b, allow: [{any: true}, {user: no-such-c}, {group: no-such-d}]}
identities: {i: {file: {roots: /nonexistent/roots.pem}}}
routes:
  orders: {servers: [db], user: app, allow: [{user: no-such-e}, {user: root, uid: 5}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	findings, err := Check(t.Context(), cfg, true)
	if err == nil || findings != nil {
		t.Fatalf("got %v, %v", findings, err)
	}
	for _, want := range []string{`socket.group: there is no group "no-such-a"`, `sockets[0].group: there is no group "no-such-b"`, `sockets[0].allow[1]: there is no user "no-such-c"`,
		`allow[2]: there is no group "no-such-d"`, `routes.orders.allow[0]: there is no user "no-such-e"`, `allow[1]: user "root" has the id 0`, "/nonexistent/roots.pem"} {
		if strings.Count(err.Error(), want) != 1 {
			t.Errorf("%q is not said once in:\n%v", want, err)
		}
	}
}

func TestCheckAcceptsNamesOfThisHost(t *testing.T) {
	cfg, err := config.Parse([]byte("socket: {group: root}\nsockets: [{path: /a, group: \"0\", allow: [{user: root}]}]\nroutes: {orders: {servers: [db], user: app, allow: [{group: root}]}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if findings, err := Check(t.Context(), cfg, false); err != nil || len(findings) != 1 {
		t.Errorf("got %v, %v", findings, err)
	}
}

func TestDoorIsNotOpenedForAGroupOrRuleThatThisHostLacks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run")
	_, err := new(Daemon).openDoor(config.Folder{Path: path, Mode: "0660", Group: "no-such-a", Allow: []config.Rule{{User: "no-such-b"}}}, 0)
	if err == nil || !strings.Contains(err.Error(), "no-such-a") || !strings.Contains(err.Error(), "no-such-b") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the folder was made")
	}
}
