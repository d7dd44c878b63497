// Package loop is one operating-system thread that waits for descriptors, for
// requests of others and for timers, and runs a handler for each: an event loop
// on epoll.
//
// It refuses to block but in its one wait, to know what the descriptors are
// for, and to be used from outside but by [Loop.Post] and [Loop.Stop]:
// everything else is called on the loop's own thread, from a handler, an alarm
// or a posted function.
//
// Invariants:
//
//   - handlers and alarms run one at a time, so that what they own needs no
//     lock;
//
//   - in each turn come first the events, then what was posted, then the alarms
//     that are due, then what was left for [Loop.Later];
//
//   - a handler that was removed, or an alarm that was cancelled, is not called
//     again, not even for an event that the kernel had already reported or in
//     the tick in which it is due;
//
//   - a timer never expires early, and does not allocate. The clock is read
//     once a turn and once before a long wait, and only if a timer is set;
//
//   - the wait does not hold up the garbage collector: the runtime's signal ends
//     its first, short part, and after 5 ms without events it lets the runtime
//     go on.
//
//     l, err := loop.New()
//     go l.Run()
//     l.Post(func() { token, err = l.Add(fd, handler, loop.Readable) })
package loop
