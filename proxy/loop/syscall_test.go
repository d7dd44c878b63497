package loop_test

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"pghandoff/proxy/loop"
)

// listen returns a socket that listens, and its address.
func listen(t *testing.T) (int, unix.Sockaddr) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	address := &unix.SockaddrUnix{Name: fmt.Sprintf("@pghandoff-loop-%d", os.Getpid())}
	if err := unix.Bind(fd, address); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 8); err != nil {
		t.Fatal(err)
	}
	return fd, address
}

func TestAcceptTakesWhoWaits(t *testing.T) {
	listener, address := listen(t)
	if fd, err := loop.Accept(listener); err != unix.EAGAIN {
		t.Errorf("nobody waits: %d, %v", fd, err)
	}
	client, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(client)
	if err := unix.Connect(client, address); err != nil {
		t.Fatal(err)
	}
	fd, err := loop.Accept(listener)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	status, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	flags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if status&unix.O_NONBLOCK == 0 || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("status %x, flags %x", status, flags)
	}
	loop.Send(client, []byte("hello"))
	p := make([]byte, 10)
	if n, err := loop.Receive(fd, p); string(p[:n]) != "hello" || err != nil {
		t.Errorf("got %q, %v", p[:n], err)
	}
	if _, err := loop.Accept(client); err != unix.EINVAL {
		t.Errorf("it does not listen: %v", err)
	}
}

func TestSendRightsDuplicatesADescriptor(t *testing.T) {
	a, b := pair(t)
	c, d := pair(t)
	if n, err := loop.SendRights(a, []byte("take it"), c); n != 7 || err != nil {
		t.Fatal(n, err)
	}
	p, oob := make([]byte, 100), make([]byte, 100)
	n, oobn, _, _, err := unix.Recvmsg(b, p, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil || string(p[:n]) != "take it" {
		t.Fatalf("got %q, %v", p[:n], err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		t.Fatal(messages, err)
	}
	rights, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(rights) != 1 || rights[0] == c {
		t.Fatal(rights, err)
	}
	defer unix.Close(rights[0])
	loop.Send(rights[0], []byte("through it"))
	if n, _ := loop.Receive(d, p); string(p[:n]) != "through it" {
		t.Errorf("got %q", p[:n])
	}
}

func TestSendRightsSaysWhyNot(t *testing.T) {
	a, b := pair(t)
	if _, err := loop.SendRights(a, []byte("x"), -1); err != unix.EBADF {
		t.Errorf("no descriptor: %v", err)
	}
	for p := make([]byte, 64<<10); ; {
		if _, err := loop.Send(a, p); err != nil {
			break
		}
	}
	if _, err := loop.SendRights(a, []byte("x"), a); err != unix.EAGAIN {
		t.Errorf("no room: %v", err)
	}
	unix.Shutdown(b, unix.SHUT_RD)
	if _, err := loop.SendRights(a, []byte("x"), a); err != unix.EPIPE {
		t.Errorf("nobody reads: %v", err)
	}
}

func TestSystemCallsAllocateNothing(t *testing.T) {
	a, b := pair(t)
	out, in := bytes.Repeat([]byte("x"), 100), make([]byte, 1000)
	n := testing.AllocsPerRun(100, func() {
		loop.SendRights(a, out, a)
		loop.Receive(b, in)
		loop.Send(a, out)
		loop.Receive(b, in)
		loop.Accept(a) // which fails
	})
	if n > 0 {
		t.Errorf("%v allocations", n)
	}
}
