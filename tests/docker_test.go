package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/tests/testpg"
)

// docker is a Docker daemon as its command line sees it.
type docker struct {
	client string   // path of the program
	env    []string // of the program
}

// startDocker returns the daemon that answers, or one of the test's own that ends with it.
func startDocker(t *testing.T) *docker {
	t.Helper()
	d := &docker{client: testpg.Require(t, "docker", "docker.io")}
	// The classic builder is in every version, needs no plugin and leaves nothing running.
	d.env = append(os.Environ(), "DOCKER_BUILDKIT=0", "DOCKER_CONFIG="+t.TempDir())
	if _, err := d.try(t.Context(), nil, "version"); err == nil {
		return d
	}
	if os.Geteuid() != 0 {
		testpg.Missing(t, "no Docker daemon answers, and only root can start one: run the test as root, or start Docker")
	}
	dir, err := os.MkdirTemp("", "pgh-docker-") // short: the paths of sockets are below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeMounted(t, dir) })
	d.env = append(d.env, "DOCKER_HOST=unix://"+dir+"/sock")
	d.serve(t, testpg.Require(t, "dockerd", "docker.io"), dir)
	return d
}

const (
	dockerStartLimit = time.Minute      // a few seconds are usual
	dockerStopLimit  = 30 * time.Second // before it is killed
)

// serve runs dockerd on the folder until the test ends. It touches neither the host's network nor its firewall, so
// containers have no network.
func (d *docker) serve(t *testing.T, program, dir string) {
	t.Helper()
	var log bytes.Buffer
	cmd := exec.Command(program, "--host=unix://"+dir+"/sock", "--data-root="+dir+"/data", "--exec-root="+dir+"/exec",
		"--pidfile="+dir+"/pid", "--bridge=none", "--iptables=false", "--ip6tables=false", "--log-level=warn")
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		cmd.Args = append(cmd.Args, "--exec-opt=native.cgroupdriver=cgroupfs") // version 1, perhaps without systemd
	}
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	ended, started := make(chan error, 1), make(chan error)
	// Pdeathsig comes when the thread that started the child ends, so the goroutine keeps its thread; the clean-up below
	// ends the child and waits.
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
			close(ended)
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("start dockerd: %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it also stops the containerd that it started
		timer := time.NewTimer(dockerStopLimit)
		defer timer.Stop()
		select {
		case <-ended:
		case <-timer.C:
			t.Errorf("dockerd did not end within %v: killed", dockerStopLimit)
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-ended
		}
		if t.Failed() {
			t.Logf("dockerd's log:\n%s", log.Bytes())
		}
	})
	waitUntil(t, dockerStartLimit, func() error {
		select {
		case err := <-ended:
			t.Fatalf("dockerd ended (%v) and said:\n%s", err, log.Bytes())
		default:
		}
		_, err := d.try(t.Context(), nil, "version")
		return err
	})
}

// waitUntil calls the function again and again until it returns nil.
func waitUntil(t *testing.T, limit time.Duration, try func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within %v: %v", limit, err)
		}
	}
}

// try runs the docker command line and returns its standard output.
func (d *docker) try(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, d.client, args...)
	var errs bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stderr = d.env, stdin, &errs
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("docker %s: %w\n%s%s", args[0], err, out, errs.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
}

// run is try for what must succeed.
func (d *docker) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := d.try(t.Context(), nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// cleanUp runs a command when the test ends, whether it succeeds or not.
func (d *docker) cleanUp(t *testing.T, args ...string) {
	t.Cleanup(func() { _, _ = d.try(context.Background(), nil, args...) })
}

// removeMounted removes a folder with whatever dockerd left mounted in it (the namespaces of networks).
func removeMounted(t *testing.T, dir string) {
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Error(err)
	}
	var points []string
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && strings.HasPrefix(fields[1], dir+string(filepath.Separator)) {
			points = append(points, fields[1])
		}
	}
	for _, p := range slices.Backward(points) { // the last one mounted may lie upon an earlier one
		err = errors.Join(err, unix.Unmount(p, unix.MNT_DETACH))
	}
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		t.Errorf("remove %s: %v", dir, err)
	}
}
