package loop

import "golang.org/x/sys/unix"

// Post makes the loop call f soon, after what was posted before. It never
// blocks, and reports false if the loop has stopped and f will not be called.
// Safe from any goroutine.
func (l *Loop) Post(f func()) bool {
	l.mu.Lock()
	if l.stopped {
		l.mu.Unlock()
		return false
	}
	l.queue = append(l.queue, f)
	first := len(l.queue) == 1
	l.mu.Unlock()
	if first && l.waiting.Load() {
		l.ring()
	}
	return true
}

// ring wakes the loop.
func (l *Loop) ring() {
	one := [8]byte{1}
	unix.Write(l.wake, one[:]) // full means that it is awake
}

// Later makes the loop call f when nothing more urgent is there: after a moment
// without events, or after some turns. It is for work that nobody waits for.
// What f itself adds so comes in the next such moment. On the loop's thread only.
func (l *Loop) Later(f func()) {
	if len(l.later) == 0 {
		l.busy = 0
	}
	l.later = append(l.later, f)
}

// Stop makes Run return once what was posted before is done. Timers that are
// set then do not expire. Safe from any goroutine.
func (l *Loop) Stop() {
	l.Post(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.stopped = true
	})
}

// runQueue calls what was posted. What these post runs in the next turn.
func (l *Loop) runQueue() {
	l.mu.Lock()
	queue := l.queue
	l.queue = l.spare[:0]
	l.mu.Unlock()
	l.spare = call(queue)
}

// patientTurns is how many turns with events work for later waits for.
const patientTurns = 16

// runLater calls what was left for later, if its time has come. To wait for a
// moment is not only to be quick for others: whoever has just had an answer may
// need this very processor to read it.
func (l *Loop) runLater(events int) {
	if len(l.later) == 0 {
		return
	}
	if l.busy++; events > 0 && l.busy < patientTurns {
		return
	}
	l.callLater()
}

func (l *Loop) callLater() {
	l.busy = 0
	later := l.later
	l.later = l.spareLater[:0]
	l.spareLater = call(later)
}

// call calls the functions and returns their slice empty, to be used again.
func call(functions []func()) []func() {
	for i, f := range functions {
		f()
		functions[i] = nil
	}
	return functions[:0]
}

// pending reports whether something was posted.
func (l *Loop) pending() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue) > 0
}
