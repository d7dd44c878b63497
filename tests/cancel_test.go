package tests

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/proxy/audit"
	"pghandoff/tests/testpg"
)

// detour is a way to a server on which each connection takes a while to arrive,
// so that cancel requests overtake nothing and come at any moment.
func detour(t *testing.T, pg *throwaway.Cluster, late func() time.Duration) *throwaway.Cluster {
	return inFrontOf(t, pg, func(c net.Conn) {
		defer c.Close()
		<-time.After(late())
		server, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", pg.Port))
		if err != nil {
			return
		}
		defer server.Close()
		go func() { // ends with the connections
			io.Copy(server, c)
			server.(*net.TCPConn).CloseWrite()
		}()
		io.Copy(c, server)
	})
}

// Proves that no cancel ever hits the next function, however long its way takes
// and whatever the first function does meanwhile: finishes, hangs up, or goes amid
// its query. All of them are on one backend as far as it can be kept.
func TestCancelNeverHitsTheNextFunction(t *testing.T) {
	rounds := 100
	if whole() {
		rounds = 1000
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var mu sync.Mutex
	chance := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(n)
	}
	pg := testpg.Start(t, testpg.Plain)
	via := detour(t, pg, func() time.Duration { return time.Duration(chance(4000)) * time.Microsecond })
	d := serve(t, via, settings{Roots: roots(t), Pool: "min_idle: 1, max: 1, wait_timeout: 18s", TLS: "mode: disable"})
	var cancels sync.WaitGroup
	hit, same, backend := 0, 0, uint32(0)
	for range rounds {
		a := d.session()
		if a.pid == backend {
			same++
		}
		backend = a.pid
		a.send(message('Q', fmt.Sprintf("select pg_sleep(%f)\x00", float64(chance(12_000))/1e6)))
		<-time.After(time.Duration(chance(3000)) * time.Microsecond)
		cancels.Go(func() { d.cancel(a.pid, a.secret) })
		if chance(3) > 0 {
			if a.answers() == "TE(57014)Z" {
				hit++
			}
		}
		if chance(2) > 0 {
			a.send(message('X', ""))
		}
		a.conn.Close()
		b := d.session()
		for range 3 {
			b.send(message('Q', "select 'whole' from pg_sleep(0.001)\x00"))
			if got := b.answers(); got != "TD(whole)CZ" {
				t.Fatalf("the next function reads %s", got)
			}
		}
		b.conn.Close()
	}
	cancels.Wait()
	forwarded := 0
	for _, e := range d.events() {
		if e.Event == audit.CancelForwarded {
			forwarded++
		}
	}
	t.Logf("%d rounds, %d on the backend of the round before, %d cancels forwarded, %d functions cancelled", rounds, same, forwarded, hit)
	if forwarded < rounds/4 || hit == 0 || same < rounds/4 {
		t.Error("that proves little")
	}
}
