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

// Later makes the loop call f at the end of this turn, after all events, posted
// functions and alarms: for work that nothing waits for. What f itself adds so
// is for the end of the next turn, which then comes at once. On the loop's
// thread only.
func (l *Loop) Later(f func()) { l.later = append(l.later, f) }

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

// runLater calls what was left for the end of the turn.
func (l *Loop) runLater() {
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
