package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// run is what pgbench says of one of its runs.
type run struct {
	transactions int
	tps          float64 // without the time it took to connect
}

var (
	transactionsLine = regexp.MustCompile(`(?m)^number of transactions actually processed: (\d+)`)
	tpsLine          = regexp.MustCompile(`(?m)^tps = ([\d.]+) \(?(?:without|excluding)`)
	failedLine       = regexp.MustCompile(`(?m)^number of failed transactions: ([1-9]\d*)`)
)

// command prepares pgbench, in a session of its own.
func (s *stage) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.pgbench, args...)
	cmd.Dir = s.dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "HOME=" + s.dir, "PGPASSFILE=" + s.pg.PassFile}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// errNothingDone: pgbench counts the time that it takes to connect, which may
// be all there is.
var errNothingDone = errors.New("pgbench did no transaction in its time")

const longestRun = 16 // seconds

// runPgbench runs it for some seconds, and for longer if that was too short to
// connect.
func (s *stage) runPgbench(ctx context.Context, to subject, clients, seconds int, args ...string) (r run, err error) {
	for ; ; seconds *= 2 {
		r, err = s.runPgbenchFor(ctx, to, clients, seconds, args...)
		if !errors.Is(err, errNothingDone) || seconds > longestRun {
			return r, err
		}
	}
}

// runPgbenchFor runs it in one thread.
func (s *stage) runPgbenchFor(ctx context.Context, to subject, clients, seconds int, args ...string) (r run, err error) {
	args = append([]string{"-n", "-c", strconv.Itoa(clients), "-j", "1", "-T", strconv.Itoa(seconds)}, args...)
	out, err := s.command(ctx, append(args, to.conninfo)...).CombinedOutput()
	if err != nil {
		return r, fmt.Errorf("pgbench: %w: %s", err, strings.TrimSpace(string(out)))
	}
	if m := failedLine.FindSubmatch(out); m != nil {
		return r, fmt.Errorf("pgbench: %s transactions failed", m[1])
	}
	count, tps := transactionsLine.FindSubmatch(out), tpsLine.FindSubmatch(out)
	if count != nil && string(count[1]) == "0" {
		return r, errNothingDone
	}
	if count == nil || tps == nil {
		return r, fmt.Errorf("pgbench printed something unknown: %s", out)
	}
	if r.transactions, err = strconv.Atoi(string(count[1])); err != nil {
		return r, err
	}
	r.tps, err = strconv.ParseFloat(string(tps[1]), 64)
	return r, err
}

// cpuTime is that of the daemon in between, if there is one.
func (to subject) cpuTime() (time.Duration, error) {
	if to.pid == 0 {
		return 0, nil
	}
	return cpuTime(to.pid)
}
