// Package admin is the control socket: HTTP over a Unix socket in the daemon's
// private folder, both ends. Its operations are status, reload and drain; the
// command `pghandoff status` uses the first.
//
// It refuses every peer that is not of the daemon's own uid in the daemon's own
// user namespace, whatever the file system says.
//
//	s, err := admin.Dial("/run/pghandoff.control/control.sock").Status(ctx)
package admin
