package handoff

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Launch acquires the leases, puts them on descriptors FirstFD and following, the connection that acquired them on the
// one behind, and becomes the program (execve). It returns only on failure, with an *ExitError.
//
// It must be called before the process opens files of its own, so that the target descriptors are still free: one that
// was inherited open is the caller's mistake (exit code 2) and never overwritten.
//
// Everything is done with blocking system calls on one thread, without package net: the runtime's poller keeps
// descriptors of its own, at the lowest free numbers, where the leases belong.
func Launch(config LaunchConfig) error {
	c, err := config.withDefaults()
	if err != nil {
		return err
	}
	path, err := findCommand(c.Args[0], c.Env)
	if err != nil {
		return err
	}
	runtime.LockOSThread() // for placing, below; on success it lasts until execve, else until here
	defer runtime.UnlockOSThread()
	taken, err := c.reserve()
	if err != nil {
		return err
	}
	c.User = UserName(c.User) // not earlier: it reads files
	start := time.Now()
	control, err := dial(c.Socket, c.ServerUID, true)
	if err != nil {
		return &ExitError{Code: ExitUnreachable, Err: err}
	}
	fds, granted, err := c.acquireAll(control)
	if err != nil {
		closeAll(append(fds, control.fd))
		return err
	}
	env, err := c.environment(granted, time.Since(start))
	if err == nil {
		err = c.place(append(fds, control.fd), taken)
	}
	if err != nil {
		closeAll(append(fds, control.fd))
		return &ExitError{Code: ExitFailed, Err: err}
	}
	return become(path, c.Args, env)
}

// reserve makes sure that the target descriptors may be used, and fills free ones, so that nothing of this process gets
// there meanwhile. taken tells that one is in use by this process itself (it is close-on-exec, hence not inherited).
func (c LaunchConfig) reserve() (taken bool, err error) {
	var free []int
	for fd := c.FirstFD; fd <= c.FirstFD+c.Count; fd++ {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		switch {
		case err == unix.EBADF:
			free = append(free, fd)
		case err != nil:
			return false, exit(ExitFailed, "look at descriptor %d: %w", fd, err)
		case flags&unix.FD_CLOEXEC == 0:
			return false, exit(ExitUsage, "descriptor %d is open already: close it (%d>&-) or choose others (--first-fd)", fd, fd)
		default:
			taken = true
		}
	}
	filler, err := unix.Eventfd(0, unix.EFD_CLOEXEC) // of all descriptors the one that needs the least
	if err != nil {
		return false, exit(ExitFailed, "reserve descriptors (ulimit -n): %w", err)
	}
	kept := false
	for _, fd := range free {
		if fd == filler {
			kept = true
		} else if err := unix.Dup3(filler, fd, unix.O_CLOEXEC); err != nil {
			return false, exit(ExitFailed, "reserve descriptor %d (ulimit -n): %w", fd, err)
		}
	}
	if !kept {
		_ = unix.Close(filler)
	}
	return taken, nil
}

// place puts the descriptors on their targets, open for the program. Where a target is in use by this process, by the
// runtime's poller for one, this thread first gets a table of descriptors for itself, so that the other threads keep
// what they use until execve ends them.
func (c LaunchConfig) place(fds []int, taken bool) error {
	if taken {
		if err := unix.Unshare(unix.CLONE_FILES); err != nil {
			return fmt.Errorf("descriptors from %d are in use by pghandoff itself and cannot be freed (%w): choose others "+
				"(--first-fd)", c.FirstFD, err)
		}
	}
	for i, fd := range fds {
		if err := unix.Dup3(fd, c.FirstFD+i, 0); err != nil {
			return fmt.Errorf("put a connection on descriptor %d: %w", c.FirstFD+i, err)
		}
	}
	return nil
}

// acquireAll asks for the leases one after the other: the daemon lets a connection have one unread grant only. On error
// it returns the descriptors received so far.
func (c LaunchConfig) acquireAll(control *control) (fds []int, granted []Granted, err error) {
	request, err := AppendCall(nil, Call{Op: OpAcquire, Database: c.Database, User: c.User, State: c.State, Transport: Any})
	if err != nil {
		return nil, nil, &ExitError{Code: ExitUsage, Err: err}
	}
	for range c.Count {
		reply, fd, err := control.exchangeLine(context.Background(), request) // execve ends it
		if refusal := (*Refusal)(nil); errors.As(err, &refusal) {
			return fds, nil, c.refused(err)
		}
		if err == nil && reply.Granted == nil {
			err = errNoLease
		}
		if err != nil {
			return fds, nil, &ExitError{Code: ExitFailed, Err: err}
		}
		fds, granted = append(fds, fd), append(granted, *reply.Granted)
	}
	return fds, granted, nil
}

// become replaces the process. A file that the kernel knows no format of is given to the shell, as execvp(3) does.
func become(path string, args, env []string) error {
	err := syscall.Exec(path, args, env)
	if errors.Is(err, unix.ENOEXEC) {
		err = syscall.Exec("/bin/sh", append([]string{"sh", path}, args[1:]...), env)
	}
	return commandError(path, err)
}
