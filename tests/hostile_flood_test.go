package tests

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pghandoff/handoff"
	"pghandoff/proxy/admin"
	"pghandoff/proxy/audit"
)

// besides starts a daemon with an honest route and one, "bad", to the server.
func besides(t *testing.T, s *hostileServer, pool string) *hostileRun {
	t.Helper()
	h := &hostileRun{daemon: newDaemon(t)}
	honest := startFakeServer(t, func(*fakeServer) {})
	h.configure(honest.cluster, settings{Pool: "min_idle: 1, max: 1, reset: none", Route: s.route("bad", filepath.Join(h.dir, "password"), pool), Secret: "hush"})
	h.start("serve", "--config", h.config)
	h.awaitWarm()
	h.serves("orders")
	h.before = h.atRest()
	return h
}

// Proves that a message of 2 GB is given to the function as it comes, and costs
// the daemon no memory, whether the function reads it or not, and with start-up
// parameters of the function's as without.
func TestMessageOfTwoGigabytesIsStreamed(t *testing.T) {
	const all = 300 << 20 // of the message, then the server hangs up
	chunk := []byte(strings.Repeat("x", 1<<20))
	var sent atomic.Int64
	s := startHostileServer(t, nil, answers(func(v *visit) {
		v.say(frame('D', 1<<31-1, ""))
		for range all / len(chunk) {
			v.say(chunk)
			sent.Add(int64(len(chunk)))
		}
		v.tcp.Close()
	}))
	h := besides(t, s, "reset: close")
	for name, startup := range map[string][]string{"without parameters": nil, "with parameters": {"TimeZone", "Asia/Tokyo"}} {
		r := h.ask("bad", startup...)
		r.conn.SetDeadline(time.Now().Add(time.Minute))
		if got := r.told(); got != "RKZ" {
			t.Fatalf("%s: it is told %s", name, got)
		}
		r.send(message('Q', "hello\x00"))
		eventually(t, "the server to be held back", func() bool {
			before := sent.Load()
			<-time.After(100 * time.Millisecond)
			return before > 0 && sent.Load() == before
		})
		h.serves("orders") // meanwhile
		most := h.residentMemory()
		n, buf := 0, make([]byte, 256<<10)
		for err := error(nil); err == nil; {
			var k int
			k, err = r.conn.Read(buf)
			if n += k; n%(64<<20) < k {
				most = max(most, h.residentMemory())
			}
			if err != nil && err != io.EOF {
				t.Errorf("%s: %v", name, err)
			}
		}
		t.Logf("%s: %d bytes came; memory %d KB before, %d KB at most", name, n, h.before.resident>>10, most>>10)
		if n != all+5 {
			t.Errorf("%s: %d bytes came", name, n)
		}
		if most > h.before.resident+8<<20 && !raceEnabled {
			t.Errorf("%s: the daemon has grown by %d KB", name, (most-h.before.resident)>>10)
		}
		r.conn.Close()
	}
	h.awaitEvent("of the end", func(e audit.Event) bool {
		return e.Route == "bad" && e.Outcome == "server_closed" && e.BytesOut == all+5
	})
	eventually(t, "as many descriptors as before", func() bool { return h.footprint().descriptors == h.before.descriptors })
}

// Proves that a function which leaves amid 2 GB ends it, and that nobody has to
// take the rest.
func TestFunctionLeavesAmidTwoGigabytes(t *testing.T) {
	s := startHostileServer(t, nil, answers(func(v *visit) {
		v.say(frame('D', 1<<31-1, ""))
		for chunk := make([]byte, 1<<20); ; {
			if _, err := v.Write(chunk); err != nil {
				return
			}
		}
	}))
	h := besides(t, s, "reset: discard")
	r := h.ask("bad")
	r.told()
	r.send(message('Q', "hello\x00"))
	if _, err := io.CopyN(io.Discard, r.conn, 10<<20); err != nil {
		t.Fatal(err)
	}
	r.conn.Close()
	h.await("no lease", restored)
	h.serves("orders")
	h.awaitEvent("of the upstream", func(e audit.Event) bool {
		return e.Route == "bad" && e.Event == audit.UpstreamClosed && e.Outcome == "not clean"
	})
	eventually(t, "as many descriptors as before", func() bool { return h.footprint().descriptors == h.before.descriptors })
}

// Proves that a server which lets everybody in and then ends the session, or goes
// on talking, is not dialled again and again, that functions are told so, and that
// it is used when it has come to its senses.
func TestServersThatAreUselessBehindTheLogin(t *testing.T) {
	for name, behind := range map[string][]byte{"the end": nil, "a second ReadyForQuery": ready, "half a message": ready[:3]} {
		t.Run(name, func(t *testing.T) {
			s := startHostileServer(t, nil, hostileScript{login: func(v *visit) {
				v.say(loggedIn(), behind)
				if behind == nil {
					v.tcp.CloseWrite()
				}
			}})
			h := besides(t, s, "reset: discard")
			refused, ended := 0, 0
			for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
				r := h.ask("bad")
				switch got := r.told(); {
				case strings.HasPrefix(got, fmt.Sprintf("E(08001: could not connect to server 127.0.0.1:%d: the server lets us in and then", s.port)):
					refused++
				case got == "RKZ" && behind == nil: // it was quicker than the end of the stream
					ended++
				default:
					t.Fatalf("it is told %s", got)
				}
				r.conn.Close()
				<-time.After(20 * time.Millisecond)
			}
			dials := s.dials.Load()
			t.Logf("%d dials, %d functions refused, %d let in", dials, refused, ended)
			if refused == 0 || dials > 20+int64(ended) {
				t.Errorf("%d dials within 2 s, %d functions refused", dials, refused)
			}
			h.await("the reason in the status", func(st *admin.Status) bool { return strings.Contains(st.Routes[0].LastError, "lets us in") })
			s.bad.Store(false)
			if err := h.client().Reload(t.Context()); err != nil {
				t.Error(err)
			}
			h.serves("bad")
		})
	}
}

// Proves that parameters which do not fit a reply of the handoff socket are a
// refusal there, with what to do, that the upstream is not lost by it, and that
// state startup and the wire socket work.
func TestParametersThatDoNotFitAReply(t *testing.T) {
	long := strings.Repeat("x", 40<<10)
	s := startHostileServer(t, nil, logsIn(authOK, parameter("one", long), parameter("two", long), key, ready))
	h := besides(t, s, "reset: discard")
	request := handoff.Request{Socket: filepath.Join(h.runDir, "handoff.sock"), Database: "bad", User: "app", State: handoff.Ready}
	for range 3 {
		_, err := handoff.Acquire(t.Context(), request)
		if refusal, ok := err.(*handoff.Refusal); !ok || refusal.SQLState != "54000" || !strings.Contains(refusal.Hint, "startup") {
			t.Fatalf("got %v", err)
		}
	}
	if n := s.dials.Load(); n != 1 {
		t.Errorf("%d dials", n)
	}
	if got := h.ask("bad").told(); got != "RS(40965)S(40965)KZ" {
		t.Errorf("by the wire socket: %s", got)
	}
	request.State = handoff.Startup
	l, err := handoff.Acquire(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := rawOn(t, l.Conn())
	r.send(startupMessage(3<<16, "user", "app"))
	if got := r.told(); got != "RS(40965)S(40965)KZ" {
		t.Errorf("with state startup: %s", got)
	}
}

// Proves that a server which reports parameters without end is stopped, and that
// neither memory nor the others suffer.
func TestParametersWithoutEnd(t *testing.T) {
	s := startHostileServer(t, nil, answers(func(v *visit) {
		for i := 0; ; i++ {
			if _, err := v.Write(parameter(fmt.Sprintf("p%d", i), strings.Repeat("x", 1000))); err != nil {
				return
			}
		}
	}))
	h := besides(t, s, "reset: discard")
	r := h.ask("bad")
	r.told()
	r.send(message('Q', "hello\x00"))
	done := make(chan string, 1)
	go func() { done <- r.told() }() // ends with the lease, or with its deadline
	beside := h.ask("orders")
	beside.told()
	slowest := time.Duration(0)
	for told := ""; told == ""; {
		start := time.Now()
		if err := beside.echo("beside"); err != nil {
			t.Fatal(err)
		}
		slowest = max(slowest, time.Since(start))
		select {
		case told = <-done:
			// It is told why only if the server was between two messages.
			if told != "…" && told != "E(08P01: the server reports too many parameters)." {
				t.Errorf("it is told %s", told)
			}
		default:
		}
	}
	beside.conn.Close()
	after := h.atRest()
	t.Logf("a function beside waited for %s at most; memory %d KB before, %d KB after", slowest, h.before.resident>>10, after.resident>>10)
	if !raceEnabled && (slowest > 2*time.Second || after.resident > h.before.resident+32<<20) {
		t.Error("that is too much")
	}
}
