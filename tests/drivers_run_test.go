package tests

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/proxy/audit"
	"pghandoff/tests/testpg"
)

const driverPatience = 90 * time.Second // for all checks of a driver; a few seconds are usual

// handedDescriptors is how many leases "pghandoff exec" gives to a driver that takes one for each connection.
const handedDescriptors = 16

// handedFirst lies above what a shell or a CI runner may have left open for its children.
const handedFirst = 300

// target is where a driver is sent.
type target struct {
	way     string
	runDir  string
	route   string
	env     []string // what a driver by TCP needs beside
	daemon  *daemon  // nil: PostgreSQL itself
	restart func() error
}

// place makes a target: a daemon of its own, or PostgreSQL's socket under the name that drivers look for.
func place(t *testing.T, pg *throwaway.Cluster, way, database string) target {
	t.Helper()
	switch way {
	case without:
		return placeDirectly(t, pg, database)
	case tcp:
		o := listenTo(t, pg, false, true, settings{})
		// Having been restarted, it is to be found where it was.
		text, err := os.ReadFile(o.config)
		if err != nil {
			t.Fatal(err)
		}
		write(t, o.config, strings.Replace(string(text), `"127.0.0.1:0"`, strconv.Quote(o.address), 1))
		return target{way: way, route: "orders", daemon: o.daemon, restart: o.restart,
			env: []string{"ADDRESS=" + o.address, "ROOTS=" + o.file("ca.crt"), "LOGIN=fn", "PASSWORD=säsame"}}
	}
	d := serve(t, pg, settings{Pool: "min_idle: 2, max: 20"})
	return target{way: way, runDir: d.runDir, route: "orders", daemon: d, restart: d.restart}
}

func placeDirectly(t *testing.T, pg *throwaway.Cluster, database string) target {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(pg.SocketDir, ".s.PGSQL."+strconv.Itoa(pg.Port)), filepath.Join(dir, ".s.PGSQL.5432")); err != nil {
		t.Fatal(err)
	}
	return target{way: without, runDir: dir, route: database,
		env: []string{fmt.Sprintf("ADDRESS=127.0.0.1:%d", pg.Port), "ROOTS=" + pg.RootsFile, "LOGIN=" + pg.Role, "PASSWORD=" + pg.Password},
		restart: func() error {
			_, err := pg.Psql(t.Context(), "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = '"+database+"'")
			return err
		}}
}

// restart stops the daemon and starts it again.
func (d *daemon) restart() error {
	d.t.Helper()
	d.stop()
	d.start("serve", "--config", d.config)
	d.awaitWarm()
	return nil
}

// used checks that the driver went through the daemon.
func (at target) used(t *testing.T) {
	t.Helper()
	if at.daemon == nil {
		return
	}
	granted := slices.ContainsFunc(at.daemon.events(), func(e audit.Event) bool { return e.Event == "lease.granted" })
	if !granted {
		t.Error("the daemon granted no lease")
	}
}

// outcome is what the checks of a driver said.
type outcome struct {
	version string
	said    map[string]string // by check
}

const (
	good  = "ok"     // what a check says; behind a comma there may be a remark
	lacks = "none, " // the beginning of what a check says of which the driver has nothing
)

// isGood tells whether a check went well, and what it remarked.
func isGood(said string) (remarked string, ok bool) {
	if said == good {
		return "", true
	}
	return strings.CutPrefix(said, good+", ")
}

// want fails the test for each check that is not ok, or at least explained.
func (o outcome) want(t *testing.T) {
	t.Helper()
	if o.version == "" {
		t.Error("the driver did not tell its version")
	}
	for _, check := range checks {
		if said, ok := o.said[check]; !ok {
			t.Errorf("%s: nothing was said", check)
		} else if _, ok := isGood(said); !ok && !strings.HasPrefix(said, lacks) {
			t.Errorf("%s: %s", check, said)
		}
	}
	for check := range o.said {
		if !slices.Contains(checks, check) {
			t.Errorf("no check is called %s", check)
		}
	}
}

// run runs all checks of the driver.
func (d driver) run(t *testing.T, at target) outcome {
	t.Helper()
	if d.checks != nil {
		return d.checks(t, at).run(t, d)
	}
	command := d.command(t)
	command = append(command, filepath.Join(filepath.Dir(driversFolder(t)), d.file))
	if at.way == handed {
		command = append([]string{program(t), "exec", "--run-dir", at.runDir, "-d", at.route, "-U", "app",
			"-n", strconv.Itoa(handedDescriptors), "--first-fd", strconv.Itoa(handedFirst), "--"}, command...)
	}
	ctx, cancel := context.WithTimeout(t.Context(), driverPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(append(withoutPostgres(os.Environ()), at.env...), "RUN_DIR="+at.runDir, "ROUTE="+at.route, "LC_ALL=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1")
	return converse(t, cmd, at)
}

// withoutPostgres is the environment without what libpq would take from it.
func withoutPostgres(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(e string) bool { return strings.HasPrefix(e, "PG") })
}

// converse runs a script, restarting the server when it asks for that.
func converse(t *testing.T, cmd *exec.Cmd, at target) outcome {
	t.Helper()
	complaints := new(lockedBuffer)
	cmd.Stderr, cmd.WaitDelay = complaints, time.Second
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	o, began := outcome{said: map[string]string{}}, time.Now()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		t.Logf("%5.2f s %s", time.Since(began).Seconds(), lines.Text())
		name, said, ok := strings.Cut(lines.Text(), ": ")
		switch {
		case lines.Text() == "restart?":
			if err := at.restart(); err != nil {
				t.Errorf("restart: %v", err)
			}
			fmt.Fprintln(in, "restarted")
		case !ok:
			t.Errorf("the script printed %q", lines.Text())
		case name == "version":
			o.version = said
		default:
			o.said[name] = said
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the script ended with: %v", err)
	}
	if t.Failed() || complaints.String() != "" {
		t.Logf("the script complained:\n%s", lastBytes(complaints.String(), 8<<10))
	}
	return o
}

// script needs an interpreter that has what the probe, its arguments, asks for.
func script(interpreter, debianPackages string, probe ...string) func(t *testing.T) []string {
	return func(t *testing.T) []string {
		t.Helper()
		found := testpg.Require(t, interpreter, debianPackages)
		if out, err := exec.CommandContext(t.Context(), found, probe...).CombinedOutput(); err != nil {
			testpg.Missing(t, fmt.Sprintf("%s lacks a part (Debian: apt install %s): %s", interpreter, debianPackages, out))
		}
		return []string{found}
	}
}

// python is Debian's interpreter, or another that has the modules.
func python(modules, debianPackage string) func(t *testing.T) []string {
	return func(t *testing.T) []string {
		t.Helper()
		found := pythonWith(t, modules)
		if found == "" {
			testpg.Missing(t, fmt.Sprintf("Python module %s is missing (Debian: apt install %s)", modules, debianPackage))
		}
		return []string{found}
	}
}

// node needs a package from npm.
func node(pkg string) func(t *testing.T) []string {
	return func(t *testing.T) []string {
		t.Helper()
		found := testpg.Require(t, "node", "nodejs npm")
		if _, err := os.Stat(filepath.Join(driversFolder(t), "node", "node_modules", pkg)); err != nil {
			testpg.Missing(t, fmt.Sprintf("package %s for Node.js is missing (npm ci --prefix tests/drivers/node)", pkg))
		}
		return []string{found}
	}
}

// java compiles the checks with pgjdbc.
func java(file string) func(t *testing.T) []string {
	return func(t *testing.T) []string {
		t.Helper()
		const jar = "/usr/share/java/postgresql.jar" // where Debian has it
		if _, err := os.Stat(jar); err != nil {
			testpg.Missing(t, jar+" is missing (Debian: apt install libpostgresql-jdbc-java)")
		}
		compiler, machine := testpg.Require(t, "javac", "default-jdk-headless"), testpg.Require(t, "java", "default-jdk-headless")
		classes := t.TempDir()
		if out, err := exec.CommandContext(t.Context(), compiler, "-encoding", "UTF-8", "-cp", jar, "-d", classes, file).CombinedOutput(); err != nil {
			t.Fatalf("compile %s: %v\n%s", file, err, out)
		}
		class := strings.TrimSuffix(filepath.Base(file), ".java")
		return []string{machine, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", jar + ":" + classes, class}
	}
}
