package proxy

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxGroups bounds the supplementary groups that are read; Linux allows 65,536
// (NGROUPS_MAX).
const maxGroups = 65536

// peerGroups reads SO_PEERGROUPS (Linux 4.13), which x/sys/unix has no call
// for. The first call tells the size by ERANGE.
func peerGroups(fd int) ([]uint32, error) {
	var few [32]uint32
	groups := few[:]
	for {
		size := uint32(len(groups) * 4)
		_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == 0:
			return append([]uint32(nil), groups[:size/4]...), nil // as small as it can be: a lease keeps it
		case errno == unix.ERANGE && size/4 > uint32(len(groups)) && size/4 <= maxGroups:
			groups = make([]uint32, size/4)
		default:
			return nil, errno
		}
	}
}
