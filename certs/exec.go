package certs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// ExecIssuer lets a program sign: it gets the request (PEM) on standard input and prints the chain (PEM), leaf first.
// It is the way to authorities that need a client of their own, such as AWS Private CA or Cloud SQL.
type ExecIssuer struct{ Command []string }

// maxChain bounds what a program may print, and an answer of Vault. 1 MiB.
const maxChain = 1 << 20

// Issue runs the program, without a shell. The error has the end of what it says on standard error.
func (e ExecIssuer) Issue(ctx context.Context, request []byte) ([]byte, error) {
	cmd := exec.CommandContext(ctx, e.Command[0], e.Command[1:]...)
	cmd.WaitDelay = time.Second
	// The URL that the daemon was started with may hold a password.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "PGHANDOFF_URL=") })
	cmd.Stdin = bytes.NewReader(request)
	out, said := &limited{max: maxChain}, &limited{max: maxChain}
	cmd.Stdout, cmd.Stderr = out, said
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("%s: %w%s", e.Command[0], err, lastLine(said.b))
	}
	return out.b, nil
}

// limited is a buffer that refuses to grow beyond max bytes.
type limited struct {
	b   []byte
	max int
}

func (l *limited) Write(p []byte) (int, error) {
	if len(l.b)+len(p) > l.max {
		return 0, errors.New("prints too much")
	}
	l.b = append(l.b, p...)
	return len(p), nil
}

// lastLine is the last line of a complaint, as the end of a sentence.
func lastLine(said []byte) string {
	text := strings.TrimSpace(strings.ToValidUTF8(string(said), "?"))
	if text = text[strings.LastIndexByte(text, '\n')+1:]; text == "" {
		return ""
	}
	return ": " + text[:min(len(text), 300)]
}
