package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"

	"pghandoff/handoff"
	"pghandoff/handoff/pgxhandoff"
)

// The three kinds of function, as the argument of the hidden command that is
// one.
const (
	kindWire    = "wire"
	kindHandoff = "handoff"
	kindExec    = "exec"
)

const question = `select current_user, pg_backend_pid(), s.version, s.client_dn from pg_stat_ssl s where s.pid = pg_backend_pid()`

// Function is one function: it gets a connection its way, asks the server who
// it is, and prints the answer.
func Function(ctx context.Context, kind, runDir string, out io.Writer) error {
	conn, err := connect(ctx, kind, runDir)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var user, version, dn string
	var pid int32
	if err := conn.QueryRow(ctx, question).Scan(&user, &pid, &version, &dn); err != nil {
		return fmt.Errorf("query: %w", err)
	}
	_, err = fmt.Fprintf(out, "user %s, backend %d, %s to the server as %s\n", user, pid, version, dn)
	return err
}

func connect(ctx context.Context, kind, runDir string) (*pgx.Conn, error) {
	switch kind {
	case kindWire:
		return pgx.Connect(ctx, wireString(runDir))
	case kindHandoff:
		return pgxhandoff.Connect(ctx, request(runDir))
	case kindExec:
		leases, err := handoff.Inherited()
		if err != nil {
			return nil, err
		}
		return pgxhandoff.Adopt(ctx, leases[0])
	}
	return nil, fmt.Errorf("there is no function of kind %q", kind)
}

func wireString(runDir string) string { return "host=" + runDir + " user=demo dbname=" + route }

func request(runDir string) handoff.Request {
	return handoff.Request{Socket: filepath.Join(runDir, handoff.SocketName), Database: route, User: "demo"}
}

// command returns a function of the given kind as a process of its own.
func (s *stage) command(ctx context.Context, kind string) *exec.Cmd {
	args := []string{"demo-function", kind, s.daemon.RunDir}
	if kind == kindExec {
		args = append([]string{"exec", "--run-dir", s.daemon.RunDir, "-d", route, "--state", "ready", "--", s.exe}, args...)
	}
	cmd := exec.CommandContext(ctx, s.exe, args...)
	cmd.Env = cleanEnvironment()
	return cmd
}

// showFunctions runs one function of each kind.
func (s *stage) showFunctions(ctx context.Context) error {
	fmt.Fprintln(s.out, "\nThree functions, each a process that holds no password, key or certificate:")
	for _, kind := range []string{kindWire, kindHandoff, kindExec} {
		cmd := s.command(ctx, kind)
		cmd.Stderr = os.Stderr
		answer, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("function by %s: %w", kind, err)
		}
		fmt.Fprintf(s.out, "  %-8s %s\n", kind, strings.TrimSpace(string(answer)))
	}
	return nil
}

// cleanEnvironment is what functions get: no secret can be in it.
func cleanEnvironment() []string { return []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent"} }
