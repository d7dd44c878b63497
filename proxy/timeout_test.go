package proxy

import (
	"strings"
	"testing"
	"time"

	"pghandoff/proxy/config"
)

// limited builds a house whose route "orders" has limits in time.
func limited(t *testing.T, leases, inTransaction, idle time.Duration) *house {
	h := build(t, nil)
	h.d.onFront(func() {
		cfg := &h.d.table.Load().routes["orders"].cfg
		cfg.Pool.LeaseTimeout, cfg.Timeouts.IdleInTransaction, cfg.Timeouts.IdleLease = config.Duration(leases), config.Duration(inTransaction), config.Duration(idle)
	})
	return h
}

func TestLimitsInTimeOfALease(t *testing.T) {
	const limit = 60 * time.Millisecond
	for name, c := range map[string]struct {
		lease, inTransaction, idle time.Duration
		question                   []byte // empty: none
		answer, told, setting      string
	}{
		"a lease that is old":               {limit, 0, 0, nil, "", "E(57P05)", "pool.lease_timeout"},
		"one in a transaction":              {limit, 0, 0, query("BEGIN"), "C(BEGIN)ZT", "E(57P05)", "pool.lease_timeout"},
		"a lease that is idle":              {0, 0, limit, query("echo x"), "D(x)C(echo)ZI", "E(57P05)", "timeouts.idle_lease"},
		"one that waits in a transaction":   {0, limit, 0, query("BEGIN"), "C(BEGIN)ZT", "E(25P03)", "timeouts.idle_in_transaction"},
		"a transaction under either limit":  {0, limit, time.Hour, query("BEGIN"), "C(BEGIN)ZT", "E(25P03)", "timeouts.idle_in_transaction"},
		"an idle lease under another limit": {0, limit, 4 * limit, query("echo x"), "D(x)C(echo)ZI", "E(57P05)", "timeouts.idle_lease"},
	} {
		t.Run(name, func(t *testing.T) {
			h := limited(t, c.lease, c.inTransaction, c.idle)
			f, began := h.wire(), time.Now()
			f.send(start())
			f.want(welcome)
			if c.question != nil {
				f.send(c.question)
				f.want(c.answer)
			}
			f.want(c.told)
			if passed := time.Since(began); passed < limit {
				t.Errorf("ended after %v", passed)
			}
			f.Close()
			h.empty()
			h.warm("orders", 1)
			h.stop()
			if trail := h.trail.String(); !strings.Contains(trail, `"event":"lease.timed_out"`) || !strings.Contains(trail, c.setting) {
				t.Errorf("the audit says %s", trail)
			}
		})
	}
}

// A lease is not idle while the server has yet to answer, nor while its function
// speaks; and one that is between two messages for too long ends all the same.
func TestLeaseThatIsNotIdle(t *testing.T) {
	const limit = 50 * time.Millisecond
	h := limited(t, 0, 0, limit)
	f := h.wire()
	f.send(start(), query("hang"))
	f.want(welcome)
	<-h.backend.hung
	<-time.After(3 * limit)
	h.backend.gate <- struct{}{}
	f.want("C(hang)ZI")
	for range 6 {
		<-time.After(limit / 2)
		f.send(query("echo x"))
		f.want("D(x)C(echo)ZI")
	}
	f.send(query("echo x")[:7])
	began := time.Now()
	h.unleased()
	if passed := time.Since(began); passed < boundaryPatience {
		t.Errorf("half a message ended it after %v", passed)
	}
	f.want("E(57P05)")
}

// A function that holds a lease and does not start is idle, too.
func TestLeaseThatIsNeverStarted(t *testing.T) {
	h := limited(t, 0, 0, 50*time.Millisecond)
	d := h.talk()
	d.say(strings.Replace(acquire("orders"), "ready", "startup", 1))
	d.wantReply(`"lease"`)
	h.unleased()
	h.stop()
	if trail := h.trail.String(); !strings.Contains(trail, `"event":"lease.timed_out"`) || !strings.Contains(trail, "timeouts.idle_lease") {
		t.Errorf("the audit says %s", trail)
	}
}
