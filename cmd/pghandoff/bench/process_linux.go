package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime is how much CPU all threads of a process have used, in nanoseconds:
// the process's CPU clock, whose number is made from the pid (clock_getcpuclockid).
// /proc/PID/stat counts in steps of 10 ms.
func cpuTime(pid int) (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &t); err != nil {
		return 0, fmt.Errorf("CPU clock of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// residentSize is how much memory a process holds, in bytes.
func residentSize(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(status) {
		if value, ok := bytes.CutPrefix(line, []byte("VmRSS:")); ok {
			fields := bytes.Fields(value)
			kib, err := strconv.ParseInt(string(fields[0]), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("the status of a process shows no VmRSS")
}

// descriptors is how many files this process, and any that it starts, may open.
func descriptors() (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("limit of descriptors: %w", err)
	}
	limit.Cur = limit.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("limit of descriptors: %w", err)
	}
	return int(min(limit.Cur, 1<<20)), nil
}

// system names the machine.
func system() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "Linux"
	}
	return "Linux " + unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
}
