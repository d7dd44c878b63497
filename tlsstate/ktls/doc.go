// Package ktls asks the kernel which TLS record protection it could take over, direction by direction, and does nothing
// else: no connection is handed to it yet.
//
// # What it refuses
//
// It touches no connection of others. [Probe] makes pairs of sockets of its own over loopback, sets throw-away keys, sends
// nothing, and closes them.
//
// # Shortest use
//
//	fmt.Println(ktls.Probe()) // "kernel TLS: none (…)"
package ktls
