package tlsstate

import (
	"errors"
	"fmt"
	"net"
)

// batch is how much data is sealed for one write of the transport.
const batch = 4 * MaxPlain // 64 KiB

// Write seals p and writes it. When a deadline passes in between, it returns how much of p is sealed, all of which counts
// as written, with the transport's error; the next Write goes on from there. Other errors are final.
func (s *Stream) Write(p []byte) (int, error) {
	if s.whole != nil {
		return s.writeWhole(p)
	}
	s.write.Lock()
	n, err := s.writeLocked(p)
	s.write.Unlock()
	s.answer() // owed since, by a Read that could not lock
	return n, err
}

func (s *Stream) writeLocked(p []byte) (n int, err error) {
	if err := s.over(); err != nil {
		return 0, err
	}
	if err := s.flushLocked(); err != nil {
		return 0, err
	}
	for n < len(p) {
		chunk := p[n:min(len(p), n+batch)]
		if s.out, err = s.conn.Seal(s.out[:0], chunk); err != nil {
			return n, err
		}
		s.pending = s.out
		n += len(chunk)
		if err := s.flushLocked(); err != nil {
			return n, err
		}
	}
	return n, nil
}

// flushLocked writes what is pending. After a deadline the rest stays pending; after another error the stream is broken,
// since sealed bytes are lost that the peer waits for.
func (s *Stream) flushLocked() error {
	if s.broken != nil {
		return s.broken
	}
	if len(s.pending) == 0 {
		return nil
	}
	n, err := s.nc.Write(s.pending)
	s.pending = s.pending[n:]
	if err == nil {
		return nil
	}
	err = fmt.Errorf("write to TLS transport: %w", err)
	if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
		s.broken, s.pending = err, nil // for writing only: what the peer sent before can still be read
	}
	return err
}

// answer sends the KeyUpdate that the receiving direction owes, at once and not only with the next data. A Write that is
// under way holds the lock and does it when it ends, so that a Read never waits for one.
func (s *Stream) answer() {
	for s.conn.Owes() && s.over() == nil && s.write.TryLock() {
		again := s.answerLocked()
		s.write.Unlock()
		if !again {
			return
		}
	}
}

// answerLocked reports whether the answer is out. Errors are kept for the next Write.
func (s *Stream) answerLocked() bool {
	s.shorten(answerPatience)
	defer s.restore()
	if s.flushLocked() != nil {
		return false
	}
	out, err := s.conn.Seal(s.out[:0], nil)
	if err != nil {
		return false
	}
	s.out, s.pending = out, out
	return s.flushLocked() == nil
}

// complain tells the peer why a Read gave up, if that is possible at once. The connection is dead already.
func (s *Stream) complain(err error) {
	if !s.write.TryLock() {
		return
	}
	defer s.write.Unlock()
	s.shorten(answerPatience)
	defer s.restore()
	if s.flushLocked() != nil {
		return
	}
	if out, failed := s.conn.AppendAlert(s.out[:0], err); failed == nil {
		s.out, s.pending = out, out
		s.flushLocked()
	}
}
