package proxy

import (
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"pghandoff/tlsstate"
)

// ferry carries a TLS connection that cannot leave crypto/tls (GODEBUG=fips140=only)
// to a descriptor, which the caller owns: behind it the loop sees plaintext. Two
// goroutines copy, until the server has closed its side or the descriptor is
// closed. It owns s, which is closed on an error.
func ferry(s *tlsstate.Stream) (int, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		s.Close()
		return -1, os.NewSyscallError("socketpair", err)
	}
	f := os.NewFile(uintptr(fds[0]), "ferry")
	near, err := net.FileConn(f) // a duplicate that the runtime's poller knows
	f.Close()
	if err != nil {
		unix.Close(fds[1])
		s.Close()
		return -1, err
	}
	go func() { // ended by either side's end; what the server said last stays to be read
		io.Copy(near, s)
		near.Close()
	}()
	go func() { // ended by the end of the descriptor, or by near's
		io.Copy(s, near)
		s.Close()
		near.Close()
	}()
	return fds[1], nil
}
