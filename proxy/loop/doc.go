// Package loop is one operating-system thread that waits for descriptors and
// for requests of others, and runs a handler for each: an event loop on epoll.
//
// It refuses to block but in its one wait, to know what the descriptors are
// for, and to be used from outside but by [Loop.Post]: everything else is
// called on the loop's own thread, from a handler or a posted function.
//
// Invariants:
//
//   - handlers run one at a time, so that what they own needs no lock;
//
//   - a handler that was removed is not called again, not even for an event
//     that the kernel had already reported;
//
//   - the wait never holds up the garbage collector: it lets the runtime go on
//     after a millisecond without events.
//
//     l, err := loop.New()
//     go l.Run()
//     l.Post(func() { token, err = l.Add(fd, handler, loop.Readable) })
package loop
