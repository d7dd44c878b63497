package tlsstate_test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/tlsstate"
)

// hopVariable makes the test's program the other process of TestConnectionHopsBetweenProcesses.
const hopVariable = "PGHANDOFF_TLSSTATE_HOP"

// A message between the two processes is one packet: the descriptor beside it, then
//
//	uint32 length | state | plaintext received since the last
func sendHop(socket, fd int, state, plain []byte) error {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(state)))
	b = append(append(b, state...), plain...)
	return unix.Sendmsg(socket, b, unix.UnixRights(fd), nil, 0)
}

func receiveHop(socket int) (fd int, state, plain []byte, err error) {
	b, oob := make([]byte, 512<<10), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := unix.Recvmsg(socket, b, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, nil, nil, err
	}
	if n == 0 {
		return -1, nil, nil, io.EOF
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		return -1, nil, nil, fmt.Errorf("no descriptor: %w", err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, nil, nil, fmt.Errorf("no descriptor: %w", err)
	}
	size := binary.BigEndian.Uint32(b)
	return fds[0], b[4 : 4+size], b[4+size : n], nil
}

// goOn reads some of the connection.
func (o *owner) goOn(bytes int) error {
	for start := o.got; o.got < start+bytes && !o.ended; {
		if err := o.receive(); err != nil {
			return err
		}
		if !o.ended && o.got < start+bytes {
			if err := o.wait(false); err != nil {
				return err
			}
		}
	}
	return nil
}

// hopChild takes the connection, reads on, and gives it back, until the socket ends.
func hopChild() int {
	for {
		fd, state, _, err := receiveHop(3)
		if err == io.EOF {
			return 0
		}
		o := &owner{fd: fd, rng: mathrand.New(mathrand.NewPCG(mathrand.Uint64(), 0)), sum: sha256.New()}
		var plain []byte
		o.sink = func(p []byte) { plain = append(plain, p...) }
		if err == nil {
			err = o.read(state)
		}
		if err == nil && o.rng.IntN(8) == 0 { // seldom: the answers may all come at the end, in a row, of which 64 are too many
			err = o.newKeys()
		}
		if err == nil { // crypto/tls gives up after 16 KeyUpdates without data between them
			err = o.send([]byte("go on"))
		}
		if err == nil {
			err = o.goOn(1 + o.rng.IntN(30_000))
		}
		if err == nil {
			if state, err = o.write(); err == nil {
				err = sendHop(3, fd, state, plain)
			}
		}
		unix.Close(fd)
		if err != nil {
			fmt.Fprintln(os.Stderr, "other process:", err)
			return 1
		}
	}
}

// A result of 10 MB is received by two processes in turn, which pass descriptor and state to each other 200 times and more.
func TestConnectionHopsBetweenProcesses(t *testing.T) {
	data := make([]byte, 10<<20)
	rand.Read(data)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			_, server, config := good(t)
			config.MaxVersion = version
			s, err := tlsstate.Client(background(t), serve(t, server, false, func(tc *tls.Conn) error {
				_, err := tc.Write(data)
				io.Copy(io.Discard, tc) // once it has closed its own direction it would fail at a KeyUpdate that it has to answer
				return err
			}), config)
			if err != nil {
				t.Fatal(err)
			}
			o := newOwner(t, s, 0)
			socket := startHop(t)
			hops := 0
			for ; !o.ended && o.got < len(data)-200_000; hops++ {
				state, err := o.write()
				if err != nil {
					t.Fatal(err)
				}
				if err := sendHop(socket, o.fd, state, nil); err != nil {
					t.Fatal(err)
				}
				fd, state, plain, err := receiveHop(socket)
				if err != nil {
					t.Fatal(err)
				}
				unix.Close(fd) // o has the same
				o.take(plain)
				if err := errors.Join(o.read(state), o.goOn(1+o.rng.IntN(30_000))); err != nil {
					t.Fatal(err)
				}
			}
			if err := o.goOn(len(data) - o.got); err != nil {
				t.Fatal(err)
			}
			if want := sha256.Sum256(data); string(o.sum.Sum(nil)) != string(want[:]) || o.got != len(data) {
				t.Errorf("%d bytes of other data", o.got)
			}
			if hops < 100 {
				t.Errorf("only %d hops", hops)
			}
			t.Logf("passed on %d times", 2*hops)
		})
	}
}

// startHop starts the other process and returns our end of the socket to it.
func startHop(t *testing.T) int {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<20)
	}
	theirs := os.NewFile(uintptr(fds[1]), "hop")
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second) // the test's own ends before its clean-up
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), hopVariable+"=1")
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = os.Stderr
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer cancel()
		unix.Close(fds[0])
		if err := cmd.Wait(); err != nil && !t.Failed() {
			t.Error(err)
		}
	})
	return fds[0]
}
