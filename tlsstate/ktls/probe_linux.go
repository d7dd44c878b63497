package ktls

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// From include/uapi/linux/tls.h.
const (
	solTLS    = 282
	optionTX  = 1
	optionRX  = 2
	version12 = 0x0303
	version13 = 0x0304
)

// cipher is what TCP_ULP's crypto_info names. Its layout, numbers in host order: uint16 version | uint16 cipher | IV | key |
// salt | sequence number 8.
type cipher struct {
	name          string
	id            uint16
	iv, key, salt int // bytes
}

var ciphers = [...]cipher{
	{"AES-128-GCM", 51, 8, 16, 4}, {"AES-256-GCM", 52, 8, 32, 4}, {"ChaCha20-Poly1305", 54, 12, 32, 0},
}

func (c *cipher) info(version uint16) string {
	b := binary.NativeEndian.AppendUint16(nil, version)
	b = binary.NativeEndian.AppendUint16(b, c.id)
	return string(append(b, make([]byte, c.iv+c.key+c.salt+8)...))
}

// Cipher is what the kernel takes of one cipher in one version.
type Cipher struct {
	Version uint16 // tls.VersionTLS12 or tls.VersionTLS13
	Name    string
	Send    bool
	Receive bool
	Err     error // why not, of the first direction that failed
}

// Support is what the kernel takes. The zero value is nothing.
type Support struct {
	Ciphers []Cipher // those that were tried
	Err     error    // why nothing could be tried at all
}

// Any reports whether there is a cipher that the kernel takes in both directions.
func (s Support) Any() bool {
	return slices.ContainsFunc(s.Ciphers, func(c Cipher) bool { return c.Send && c.Receive })
}

// String is one line for people.
func (s Support) String() string {
	var parts []string
	reason := s.Err
	for _, c := range s.Ciphers {
		version := map[uint16]string{version12: "TLS 1.2 ", version13: "TLS 1.3 "}[c.Version]
		switch {
		case c.Send && c.Receive:
			parts = append(parts, version+c.Name)
		case c.Send:
			parts = append(parts, version+c.Name+" (sending only)")
		case c.Receive:
			parts = append(parts, version+c.Name+" (receiving only)")
		case reason == nil:
			reason = c.Err
		}
	}
	if len(parts) == 0 {
		return fmt.Sprintf("kernel TLS: none (%v)", reason)
	}
	return "kernel TLS: " + strings.Join(parts, ", ")
}

// ErrNoKernelTLS: the kernel has no TLS.
var ErrNoKernelTLS = errors.New("the kernel has no TLS: built without CONFIG_TLS, or the module tls is not loaded (modprobe tls)")

// Probe tries each cipher, in each version and direction, on sockets of its own. It takes a millisecond, holds at most three
// descriptors, and returns none.
func Probe() Support {
	var s Support
	for _, version := range []uint16{version13, version12} {
		for i := range ciphers {
			c, err := try(&ciphers[i], version)
			if err != nil {
				return Support{Err: err}
			}
			s.Ciphers = append(s.Ciphers, c)
		}
	}
	return s
}

// try probes one cipher; an error means that no further one needs to be tried.
func try(c *cipher, version uint16) (Cipher, error) {
	out := Cipher{Version: version, Name: c.name}
	a, b, err := loopback()
	if err != nil {
		return out, err
	}
	defer unix.Close(a)
	defer unix.Close(b)
	switch err := unix.SetsockoptString(a, unix.IPPROTO_TCP, unix.TCP_ULP, "tls"); err {
	case nil:
	case unix.ENOENT, unix.ENOPROTOOPT:
		return out, ErrNoKernelTLS
	default:
		return out, fmt.Errorf("probe kernel TLS: %w", os.NewSyscallError("setsockopt TCP_ULP", err))
	}
	tx := unix.SetsockoptString(a, solTLS, optionTX, c.info(version))
	rx := unix.SetsockoptString(a, solTLS, optionRX, c.info(version))
	out.Send, out.Receive = tx == nil, rx == nil
	if tx != nil {
		out.Err = fmt.Errorf("%s for sending: %w", c.name, tx)
	} else if rx != nil {
		out.Err = fmt.Errorf("%s for receiving: %w", c.name, rx)
	}
	return out, nil
}

// loopback makes two connected TCP sockets, which the caller owns. TCP_ULP wants a connection that is established.
func loopback() (client, server int, err error) {
	l, err := socket()
	if err != nil {
		return -1, -1, err
	}
	defer unix.Close(l)
	if err := unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return -1, -1, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(l, 1); err != nil {
		return -1, -1, os.NewSyscallError("listen", err)
	}
	address, err := unix.Getsockname(l)
	if err != nil {
		return -1, -1, os.NewSyscallError("getsockname", err)
	}
	if client, err = socket(); err != nil {
		return -1, -1, err
	}
	if err := unix.Connect(client, address); err != nil {
		unix.Close(client)
		return -1, -1, os.NewSyscallError("connect", err)
	}
	if server, _, err = unix.Accept4(l, unix.SOCK_CLOEXEC); err != nil {
		unix.Close(client)
		return -1, -1, os.NewSyscallError("accept", err)
	}
	return client, server, nil
}

func socket() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	return fd, os.NewSyscallError("socket", err)
}
