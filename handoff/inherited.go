package handoff

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNoneInherited is returned by Inherited in a process that was given no descriptors, or has taken them already.
var ErrNoneInherited = errors.New("no connection was handed to this process (" + EnvFDs + " is not set): start it with " +
	"\"pghandoff exec -- COMMAND\"")

const maxInherited = 1000

// Inherited returns the leases that "pghandoff exec" (or a container runtime that passed its descriptors on) handed to
// this process. It works once: it takes the variables out of the environment and makes the descriptors close-on-exec,
// so that children get neither.
//
// Cancel and Release go by way of the inherited connection that acquired the leases.
func Inherited() ([]*Lease, error) {
	list, controlText, state, replies := os.Getenv(EnvFDs), os.Getenv(EnvControl), os.Getenv(EnvState), os.Getenv(EnvReply)
	if list == "" {
		return nil, ErrNoneInherited
	}
	for _, name := range []string{EnvFDs, EnvControl, EnvState, EnvReply, EnvAcquired} {
		_ = os.Unsetenv(name) // fails for malformed names only
	}
	fds, err := parseDescriptors(EnvFDs, list)
	if err != nil {
		return nil, err
	}
	var controlFDs []int
	if controlText != "" {
		if controlFDs, err = parseDescriptors(EnvControl, controlText); err != nil {
			return nil, err
		}
		if len(controlFDs) != 1 {
			return nil, fmt.Errorf("%s is %q, must be one descriptor number", EnvControl, controlText)
		}
	}
	for _, fd := range append(controlFDs, fds...) {
		unix.CloseOnExec(fd)
	}
	granted, err := grantedFrom(replies, State(state), len(fds))
	if err != nil {
		return nil, err
	}
	return adopt(fds, controlFDs, granted)
}

// parseDescriptors reads "3" or "3,4,5". Descriptors must be open.
func parseDescriptors(name, text string) ([]int, error) {
	parts := strings.Split(text, ",")
	if len(parts) > maxInherited {
		return nil, fmt.Errorf("%s names more than %d descriptors", name, maxInherited)
	}
	fds := make([]int, 0, len(parts))
	for _, part := range parts {
		fd, err := strconv.Atoi(part)
		if err != nil || fd < 0 {
			return nil, fmt.Errorf("%s is %q, must be descriptor numbers parted by commas", name, text)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			return nil, fmt.Errorf("%s names descriptor %d, which is not open here: it must be passed on to this process "+
				"(podman run --preserve-fds)", name, fd)
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// grantedFrom reads the array of replies; without one the leases have only their state.
func grantedFrom(replies string, state State, count int) ([]Granted, error) {
	granted := make([]Granted, count)
	if replies == "" {
		for i := range granted {
			granted[i] = Granted{State: state, Transport: Bridge}
		}
		return granted, nil
	}
	s, err := newScanner(replies)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", EnvReply, replyFault(err))
	}
	n := 0
	err = s.list('[', ']', func() error {
		r, err := readReply(&s)
		if err != nil {
			return err
		}
		if n == count || r.Granted == nil {
			return malformed("it must hold one granting reply for each of %d descriptors", count)
		}
		granted[n] = *r.Granted
		n++
		return nil
	})
	if err == nil {
		err = s.end()
	}
	if err == nil && n != count {
		err = malformed("it holds %d replies for %d descriptors", n, count)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", EnvReply, replyFault(err))
	}
	return granted, nil
}

// adopt makes leases of descriptors, which it owns. They share the control connection, if there is one.
func adopt(fds, controlFDs []int, granted []Granted) (leases []*Lease, err error) {
	var shared *control
	if len(controlFDs) > 0 {
		if shared, err = adoptControl(controlFDs[0]); err != nil {
			closeAll(fds)
			return nil, err
		}
		defer func() { _ = shared.release() }() // each lease holds it too
	}
	for i, fd := range fds {
		lease, err := newLease(granted[i], os.NewFile(uintptr(fd), EnvFDs))
		if err != nil {
			closeAll(fds[i+1:])
			for _, l := range leases {
				_ = l.Close()
			}
			return nil, fmt.Errorf("%s names descriptor %d: %w", EnvFDs, fd, err)
		}
		if shared != nil {
			shared.users++
			lease.control = shared
		}
		leases = append(leases, lease)
	}
	return leases, nil
}

func adoptControl(fd int) (*control, error) {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	switch {
	case err != nil:
		err = fmt.Errorf("%s names descriptor %d, which is no socket: %w", EnvControl, fd, err)
	case domain != unix.AF_UNIX:
		err = fmt.Errorf("%s names descriptor %d, which is no connection to pghandoff", EnvControl, fd)
	default:
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	c := &control{fd: fd, users: 1}
	c.keep()
	return c, nil
}
