package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"pghandoff/cmd/pghandoff/child"
	"pghandoff/cmd/pghandoff/throwaway"
)

const (
	fewLeases   = 100             // with which the count begins: what the daemon needs anyway is there
	memoryPause = 3 * time.Second // for the garbage of the handshakes to go
	perLeaseFDs = 2               // in the daemon as in this process, which is both function and server
	otherFDs    = 500
)

// measureMemory holds thousands of leases. No PostgreSQL has so many backends
// here, so the server is one that logs in and then does nothing.
func (s *stage) measureMemory(ctx context.Context) error {
	limit, err := descriptors()
	if err != nil {
		return err
	}
	wanted := []int{2000, 8000}
	if s.Quick {
		wanted = []int{1000}
	}
	counts := []int{fewLeases}
	for _, n := range wanted {
		if perLeaseFDs*n+otherFDs > limit {
			s.notes = append(s.notes, fmt.Sprintf("Left out: memory with %d leases, for which %d descriptors are too few (ulimit -Hn).", n, limit))
			continue
		}
		counts = append(counts, n)
	}
	if len(counts) == 1 {
		return nil
	}
	sizes, err := s.holdLeases(ctx, counts)
	if err != nil {
		return fmt.Errorf("hold leases: %w", err)
	}
	for i, n := range counts[1:] {
		f := Figure{Group: Memory, Case: fmt.Sprintf("%d leases", n), Target: ours}
		s.results.add(f, perLease, float64(sizes[i+1]-sizes[0])/float64(n-fewLeases))
	}
	return nil
}

// holdLeases returns the daemon's resident size, in bytes, with each of the
// rising counts of leases.
func (s *stage) holdLeases(ctx context.Context, counts []int) (sizes []int64, err error) {
	fake, err := startFakeServer(s.pg.CA)
	if err != nil {
		return nil, err
	}
	defer fake.close()
	d, err := s.startDaemonFor(fake, counts[len(counts)-1])
	if err != nil {
		return nil, err
	}
	defer d.Kill() // it would clean thousands of sessions
	if _, err := d.AwaitWarm(ctx); err != nil {
		return nil, err
	}
	var held []net.Conn
	defer func() {
		for _, conn := range held {
			_ = conn.Close()
		}
	}()
	for _, count := range counts {
		s.progress("memory: %d leases", count)
		for len(held) < count {
			conn, err := s.hold(ctx, d)
			if err != nil {
				return nil, errors.Join(err, fake.err())
			}
			held = append(held, conn)
		}
		if err := pause(ctx, memoryPause); err != nil {
			return nil, err
		}
		size, err := residentSize(d.Pid())
		if err != nil {
			return nil, err
		}
		sizes = append(sizes, size)
	}
	return sizes, nil
}

// startDaemonFor starts a daemon that takes so many leases of one uid.
func (s *stage) startDaemonFor(fake *fakeServer, leases int) (*child.Daemon, error) {
	dir := filepath.Join(s.dir, "memory")
	if err := os.Mkdir(dir, 0o711); err != nil {
		return nil, err
	}
	server := &throwaway.Cluster{Host: "127.0.0.1", Port: fake.port, Role: s.pg.Role, Password: s.pg.Password, Database: s.pg.Database,
		RootsFile: s.pg.RootsFile, ClientCertFile: s.pg.ClientCertFile, ClientKeyFile: s.pg.ClientKeyFile}
	return child.StartDaemon(child.Settings{Exe: s.exe, Dir: dir, Route: route, Server: server, TLS: "identity: app", Allow: whoever,
		Pool:   fmt.Sprintf("min_idle: 1, max: %d, wait_timeout: 30s", leases+fewLeases),
		Global: fmt.Sprintf("limits: {leases: %[1]d, waiting: %[1]d, connections: %[1]d}", leases+fewLeases)})
}

// hold takes a lease and keeps it.
func (s *stage) hold(ctx context.Context, d *child.Daemon) (net.Conn, error) {
	to := s.wire(d)
	conn, err := new(net.Dialer).DialContext(ctx, "unix", to.socket)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(startup(to.role, route)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if err := awaitReady(conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}
