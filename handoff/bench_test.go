package handoff_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"pghandoff/handoff"
	"pghandoff/handoff/handofftest"
)

const benchLine = `{"v":1,"id":"a1","op":"acquire","database":"orders","user":"app","state":"ready","transport":"any",` +
	`"wait_ms":5000,"application_name":"resize-image","parameters":{"TimeZone":"UTC"}}`

// benchParameters are what PostgreSQL 17 reports.
var benchParameters = []handoff.Parameter{
	{Name: "application_name", Value: "resize-image"}, {Name: "client_encoding", Value: "UTF8"},
	{Name: "DateStyle", Value: "ISO, MDY"}, {Name: "default_transaction_read_only", Value: "off"},
	{Name: "in_hot_standby", Value: "off"}, {Name: "integer_datetimes", Value: "on"},
	{Name: "IntervalStyle", Value: "postgres"}, {Name: "is_superuser", Value: "off"},
	{Name: "scram_iterations", Value: "4096"}, {Name: "server_encoding", Value: "UTF8"},
	{Name: "server_version", Value: "17.2 (Debian 17.2-1.pgdg120+1)"}, {Name: "session_authorization", Value: "app"},
	{Name: "standard_conforming_strings", Value: "on"}, {Name: "TimeZone", Value: "Europe/Berlin"},
}

func BenchmarkParseCall(b *testing.B) {
	b.ReportAllocs()
	line := []byte(benchLine)
	for b.Loop() {
		if _, err := handoff.ParseCall(line); err != nil {
			b.Fatal(err)
		}
	}
}

func benchReply() handoff.Reply {
	id, secret := "a1", handoff.Secret(182736455)
	return handoff.Reply{ID: &id, Granted: &handoff.Granted{Lease: "0190a1b2-0000-7000-8000-0123456789ab", Database: "orders",
		Transport: handoff.Bridge, State: handoff.Ready, Tx: 'I', PID: 4211, Secret: &secret, Parameters: benchParameters}}
}

func BenchmarkAppendReply(b *testing.B) {
	b.ReportAllocs()
	r := benchReply()
	var buf []byte
	for b.Loop() {
		var err error
		if buf, err = handoff.AppendReply(buf[:0], r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseReply(b *testing.B) {
	b.ReportAllocs()
	line, err := handoff.AppendReply(nil, benchReply())
	if err != nil {
		b.Fatal(err)
	}
	line = line[:len(line)-1]
	for b.Loop() {
		if _, err := handoff.ParseReply(line); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkConversation(b *testing.B) {
	b.ReportAllocs()
	line := []byte(benchLine + "\n")
	var c handoff.Conversation
	for b.Loop() {
		c.Feed(line)
		if _, ok, _ := c.Next(); !ok {
			b.Fatal("no call")
		}
	}
}

// pairs grants socketpairs with what PostgreSQL reports.
type pairs struct{}

func (pairs) Acquire(context.Context, handoff.Call) (*handofftest.Grant, error) {
	near, far, err := handofftest.Pair()
	if err != nil {
		return nil, err
	}
	_ = far.Close()
	return &handofftest.Grant{Granted: *benchReply().Granted, File: near}, nil
}
func (pairs) Cancel(context.Context, handoff.Claim) error  { return nil }
func (pairs) Release(context.Context, handoff.Claim) error { return nil }

// BenchmarkAcquire has the daemon's end in a process of its own, as in life: a goroutine that waits for another one of its
// own process is woken by another way.
func BenchmarkAcquire(b *testing.B) {
	path := filepath.Join(b.TempDir(), handoff.SocketName)
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.CommandContext(b.Context(), self)
	cmd.Env = []string{envRole + "=serve", envConfig + "=" + path}
	ready, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if _, err := ready.Read(make([]byte, 1)); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	r := handoff.Request{Socket: path, Database: "orders", User: "app", State: handoff.Ready}
	for b.Loop() {
		l, err := handoff.Acquire(ctx, r)
		if err != nil {
			b.Fatal(err)
		}
		_ = l.Close()
	}
}

// roleServe is the daemon's end. It is ended by whoever started it.
func roleServe() {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: os.Getenv(envConfig), Net: "unix"})
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			panic(err)
		}
		go handofftest.Serve(context.Background(), conn, pairs{}) // ends with the process
	}
}
