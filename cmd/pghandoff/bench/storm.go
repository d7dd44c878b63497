package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"pghandoff/handoff"
)

const stormSize = 200 // functions

// stormLimit ends a storm that would never end.
const stormLimit = 60 * time.Second

// measureStorm lets many functions come at once, as after a restart, to pools
// that are smaller: each asks one thing and leaves.
func (s *stage) measureStorm(ctx context.Context) error {
	wire := s.wire(s.daemon)
	functions := []storm{{oursWire, wire.pid, byWire(wire)}, {oursLease, wire.pid, s.byLease}}
	for _, p := range s.peers {
		if p.kind.pools {
			functions = append(functions, storm{p.name, p.pid, byWire(p.subject)})
		}
	}
	config, err := pgconn.ParseConfig(s.pg.URL())
	if err != nil {
		return err
	}
	for round := range s.Rounds {
		s.progress("%d functions at once: round %d of %d", stormSize, round+1, s.Rounds)
		if err := inTurn(ctx, round, functions, func(f storm) error { return s.blow(ctx, f) }); err != nil {
			return err
		}
	}
	direct := storm{directTLS, 0, func(ctx context.Context) (acquired, error) { return overTLS(ctx, config) }}
	return s.blow(ctx, direct) // once: it is dear, and does not matter
}

// storm is a kind of function.
type storm struct {
	name string
	pid  int // of the daemon; 0: none
	one  func(context.Context) (acquired, error)
}

// blow runs the functions and notes when the last one was connected and when
// the last one had its answer.
func (s *stage) blow(ctx context.Context, f storm) error {
	daemon := subject{pid: f.pid}
	before, err := daemon.cpuTime()
	if err != nil {
		return err
	}
	last, err := f.allAtOnce(ctx)
	if err != nil {
		return fmt.Errorf("%d functions at once by %s: %w", stormSize, f.name, err)
	}
	if err := pause(ctx, settle); err != nil {
		return err
	}
	after, err := daemon.cpuTime()
	if err != nil {
		return err
	}
	figure := Figure{Group: Storm, Case: fmt.Sprintf("%d functions", stormSize), Target: f.name}
	s.results.add(figure, lastConn, last.ready.Seconds()*1000)
	s.results.add(figure, lastDone, last.query.Seconds()*1000)
	if f.pid != 0 {
		s.results.add(figure, cpuPerTx, micros(after-before)/stormSize)
	}
	return nil
}

// allAtOnce returns how long the slowest took, from when all were let go.
func (f storm) allAtOnce(ctx context.Context) (last acquired, err error) {
	ctx, cancel := context.WithTimeout(ctx, stormLimit)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	begin := make(chan struct{})
	var start time.Time // written before begin is closed
	for range stormSize {
		wg.Go(func() { // ends with the one function; awaited below
			<-begin
			late := time.Since(start)
			took, problem := f.one(ctx)
			mu.Lock()
			defer mu.Unlock()
			last.ready, last.query = max(last.ready, late+took.ready), max(last.query, late+took.query)
			err = errors.Join(err, problem)
		})
	}
	start = time.Now()
	close(begin)
	wg.Wait()
	return last, err
}

// byWire is a function that uses a socket with a start-up message.
func byWire(to subject) func(context.Context) (acquired, error) {
	hello := startup(to.role, route)
	return func(ctx context.Context) (a acquired, err error) {
		start := time.Now()
		conn, err := new(net.Dialer).DialContext(ctx, "unix", to.socket)
		if err != nil {
			return a, err
		}
		defer conn.Close()
		if _, err := conn.Write(hello); err != nil {
			return a, err
		}
		if err := awaitReady(conn); err != nil {
			return a, err
		}
		a.ready = time.Since(start)
		err = askAndLeave(conn)
		a.query = time.Since(start)
		return a, err
	}
}

// byLease is a function that asks for a descriptor.
func (s *stage) byLease(ctx context.Context) (a acquired, err error) {
	start := time.Now()
	l, err := handoff.Acquire(ctx, handoff.Request{Socket: filepath.Join(s.daemon.RunDir, handoff.SocketName), Database: route,
		User: s.pg.Role, State: handoff.Ready})
	if err != nil {
		return a, err
	}
	a.ready = time.Since(start)
	err = askAndLeave(l.Conn())
	a.query = time.Since(start)
	return a, errors.Join(err, l.Close())
}

func askAndLeave(conn net.Conn) error {
	if _, err := conn.Write(oneQuery); err != nil {
		return err
	}
	if err := awaitReady(conn); err != nil {
		return err
	}
	_, err := conn.Write(terminate)
	return err
}

// awaitReady reads up to a ReadyForQuery message.
func awaitReady(conn net.Conn) error {
	if err := conn.SetReadDeadline(time.Now().Add(stormLimit)); err != nil {
		return err
	}
	buf := make([]byte, 4<<10) // 4 KiB; a start-up takes less than one
	for n, at := 0, 0; n < len(buf); {
		got, err := conn.Read(buf[n:])
		if err != nil {
			return err
		}
		n += got
		var ready bool
		if at, ready, err = scan(buf[:n], at); ready || err != nil {
			return err
		}
	}
	return io.ErrShortBuffer
}
