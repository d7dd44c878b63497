package handoff

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"
)

// SocketName and WireName are the names of the two sockets in a run folder: for this protocol, and for PostgreSQL's.
const (
	SocketName = "handoff.sock"
	WireName   = ".s.PGSQL.5432"
)

// Environment variables of this package. The first one names the handoff socket for clients; the others are what Launch
// tells the program that it starts, see Inherited.
const (
	EnvSocket  = "PGHANDOFF_SOCKET"
	EnvFDs     = "PGHANDOFF_FDS"        // descriptors of the leases: "3" or "3,4,5"
	EnvControl = "PGHANDOFF_CONTROL_FD" // descriptor of the connection that acquired them
	EnvState   = "PGHANDOFF_STATE"      // startup or ready, for all of them
	EnvReply   = "PGHANDOFF_REPLY"      // JSON array of the replies, without secrets
	// EnvAcquired tells how long it took to get them, in microseconds: from before connecting to the daemon until the
	// last descriptor was there.
	EnvAcquired = "PGHANDOFF_ACQUIRE_US"
)

// RunDir returns the folder of the daemon's sockets: override if it is not empty, else $RUNTIME_DIRECTORY, else
// /run/pghandoff for root, else $XDG_RUNTIME_DIR/pghandoff, and /run/pghandoff where that is unset.
func RunDir(override string) string {
	if override != "" {
		return override
	}
	// systemd names several folders parted by colons if the unit has several; the first one is ours.
	if dir, _, _ := strings.Cut(os.Getenv("RUNTIME_DIRECTORY"), ":"); dir != "" {
		return dir
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" && os.Geteuid() != 0 {
		return filepath.Join(dir, "pghandoff")
	}
	return "/run/pghandoff"
}

// SocketPath returns the handoff socket that clients use: override if it is not empty, else $PGHANDOFF_SOCKET, else the
// one in RunDir.
func SocketPath(override string) string {
	if override != "" {
		return override
	}
	if path := os.Getenv(EnvSocket); path != "" {
		return path
	}
	return filepath.Join(RunDir(""), SocketName)
}

// WirePath returns the socket for PostgreSQL's own protocol that lies beside a handoff socket.
func WirePath(socket string) string { return filepath.Join(filepath.Dir(socket), WireName) }

// UserName returns the name to ask with: override if it is not empty, else, as in libpq, $PGUSER, else the name of this
// process's user. Containers often run as a number without a name; the daemon only notes the name, so the number does.
func UserName(override string) string {
	if override != "" {
		return override
	}
	if name := os.Getenv("PGUSER"); name != "" {
		return name
	}
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return fmt.Sprintf("uid-%d", os.Geteuid())
}
