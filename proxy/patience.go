package proxy

import "time"

// patiences are how long a function is waited for before it has a lease. They
// stay as they are once the daemon runs; tests make them shorter.
type patiences struct {
	// startupPatience is how long a function may take to send its start-up packet.
	startupPatience time.Duration
	// refusalPatience is how long a connection over its limit may take for it.
	refusalPatience time.Duration
	// unreadPatience is how long a grant may lie in the function's queue.
	unreadPatience time.Duration
	// writePatience is how long a function may leave no room for a reply.
	writePatience time.Duration
}

var usualPatiences = patiences{
	startupPatience: 10 * time.Second,
	refusalPatience: time.Second,
	unreadPatience:  2 * time.Second,
	writePatience:   2 * time.Second,
}
