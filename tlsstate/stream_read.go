package tlsstate

import (
	"errors"
	"fmt"
	"io"
)

const (
	smallBuffer = 4 << 10  // 4 KiB: grows to a record where one is longer
	wideBuffer  = 64 << 10 // 64 KiB
)

// Buffered makes each read of the transport take as much as is there, up to 64 KiB, in place of one record's header or
// rest. What was read ahead goes along with Detach. It waits for a Read that is under way.
func (s *Stream) Buffered(on bool) {
	s.read.Lock()
	defer s.read.Unlock()
	s.wide = on
}

// Held returns how many bytes of the peer wait in the Stream: opened and not taken, or read and not opened. It waits for a
// Read that is under way.
func (s *Stream) Held() int {
	s.read.Lock()
	defer s.read.Unlock()
	return len(s.plain) + s.end - s.start
}

// Read gives data of the next record, or what is left of the last. Errors: io.EOF after the peer's close_notify,
// ErrTruncated when the transport ends without one, *AlertError, *ProtocolError and ErrDead as from Open, and what the
// transport returned; after a deadline of it Read may be called again.
func (s *Stream) Read(p []byte) (int, error) {
	if s.whole != nil {
		return s.readWhole(p)
	}
	s.read.Lock()
	defer s.read.Unlock()
	if err := s.over(); err != nil {
		return 0, err
	}
	if len(p) == 0 {
		return 0, nil
	}
	for len(s.plain) == 0 {
		if err := s.advance(); err != nil {
			return 0, err
		}
	}
	n := copy(p, s.plain)
	clear(s.plain[:n]) // passwords and rows are not kept longer than needed
	s.plain = s.plain[n:]
	return n, nil
}

// advance opens the next record in buf, or reads more.
func (s *Stream) advance() error {
	plain, n, err := s.conn.Open(s.buf[s.start:s.end])
	s.start += n
	if err != nil {
		if err != io.EOF {
			s.complain(err)
		}
		return err
	}
	s.plain = plain
	if s.conn.Owes() {
		s.answer()
	}
	if n == 0 {
		return s.fill()
	}
	return nil
}

// fill reads once from the transport: in exact mode no more than the first record lacks.
func (s *Stream) fill() error {
	need := Need(s.buf[s.start:s.end])
	s.room(need)
	into := s.buf[s.end:]
	if !s.wide {
		into = into[:need]
	}
	n, err := s.nc.Read(into)
	s.end += n
	if n > 0 {
		return nil // an error comes again
	}
	if ended := s.over(); ended != nil {
		return ended
	}
	if errors.Is(err, io.EOF) {
		return ErrTruncated
	}
	if err != nil {
		return fmt.Errorf("read from TLS transport: %w", err)
	}
	return nil
}

// room makes buf have need bytes free behind end. Nothing opened is in it any more when it is called.
func (s *Stream) room(need int) {
	if s.start > 0 {
		s.end = copy(s.buf, s.buf[s.start:s.end])
		s.start = 0
	}
	size := max(smallBuffer, s.end+need)
	if s.wide {
		size = max(size, wideBuffer)
	}
	if len(s.buf) < size {
		s.buf = append(make([]byte, 0, size), s.buf[:s.end]...)[:size]
	}
}
