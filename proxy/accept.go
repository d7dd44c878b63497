package proxy

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/handoff"
	"pghandoff/proxy/loop"
)

// entry is one listening socket of a door. It belongs to the front loop.
type entry struct {
	d        *Daemon
	door     *door
	fd       int // owned
	handoff  bool
	listener *listener // nil: it is a Unix socket
	token    loop.Token
	rest     loop.Timer // until accepting is tried again
}

// acceptPause is how long a failing accept is left alone.
const acceptPause = 20 * time.Millisecond

// open begins to accept. Front loop only. What a function sends may bring no
// descriptors, which each connection has from this one: to close them could take
// the loop long.
func (e *entry) open() (err error) {
	if e.listener == nil {
		handoff.RefuseDescriptors(e.fd)
	}
	e.token, err = e.d.front().Add(e.fd, e, loop.Readable)
	return err
}

// close stops listening. It is idempotent, and to be called on the front loop
// once that runs.
func (e *entry) close() {
	if e.token != 0 {
		e.d.front().Cancel(&e.rest)
		e.d.front().Remove(e.token)
		e.token = 0
	}
	if e.fd >= 0 {
		unix.Close(e.fd)
		e.fd = -1
	}
}

// Ready takes one connection and serves it as far as that goes without waiting.
// The next one is served in the next turn, among all others. Running out of
// descriptors is waited out, never an end.
func (e *entry) Ready(loop.Events) {
	fd, err := loop.Accept(e.fd)
	switch err {
	case nil:
	case unix.EAGAIN, unix.ECONNABORTED:
		return
	default:
		e.trouble(err)
		return
	}
	if e.listener != nil {
		e.listener.serve(fd)
		return
	}
	peer, err := peerOf(fd)
	if err != nil {
		unix.Close(fd)
		e.d.log.Error().Err(err).Msg("connection refused: who it is cannot be told")
		return
	}
	if e.handoff {
		e.d.serveHandoff(e.door, fd, peer)
	} else {
		e.d.serveWire(e.door, fd, peer)
	}
}

// trouble stops accepting for a moment.
func (e *entry) trouble(err error) {
	e.d.complain.Do(func() { e.d.log.Error().Err(err).Str(fieldSocket, e.door.dir).Msg("accept") })
	if err == unix.EMFILE || err == unix.ENFILE {
		e.d.descriptors.use(e.turnAway)
	}
	e.d.front().Want(e.token, 0)
	e.d.front().Set(&e.rest, acceptPause, e)
}

// Expired is called when the pause is over.
func (e *entry) Expired(*loop.Timer) {
	if err := e.d.front().Want(e.token, loop.Readable); err != nil {
		e.trouble(err)
	}
}

// turnAway takes one connection, for which there is no descriptor but the spare
// one, and tells it so.
func (e *entry) turnAway() {
	fd, err := loop.Accept(e.fd)
	if err != nil {
		return
	}
	e.d.turnAway(fd, e.handoff, errDescriptors())
}

// turnAway tells a connection why it is not served, before it has asked, and
// closes it. The one message always fits into an empty socket.
func (d *Daemon) turnAway(fd int, isHandoff bool, f *Failure) {
	if isHandoff {
		loop.Send(fd, refusalLine(nil, refusalOf(f)))
	} else {
		loop.Send(fd, lastWords(f))
	}
	unix.Close(fd)
}

// spare is a descriptor that is kept so that somebody can be told when there is
// no other. It belongs to the front loop once that runs.
type spare struct{ fd int }

// hold takes the spare descriptor, if it is free to be had.
func (s *spare) hold() {
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		fd = -1 // without it nobody is told, that is all
	}
	s.fd = fd
}

// close gives the descriptor up for good.
func (s *spare) close() {
	if s.fd >= 0 {
		unix.Close(s.fd)
		s.fd = -1
	}
}

// use gives the descriptor up while f runs.
func (s *spare) use(f func()) {
	if s.fd >= 0 {
		unix.Close(s.fd)
		f()
	}
	s.hold()
}

// seldom lets something be said once a second. Safe for concurrent use.
type seldom struct {
	mu   sync.Mutex
	last time.Time
}

// Do calls f unless it called one less than a second ago.
func (s *seldom) Do(f func()) {
	s.mu.Lock()
	due := time.Since(s.last) >= time.Second
	if due {
		s.last = time.Now()
	}
	s.mu.Unlock()
	if due {
		f()
	}
}
