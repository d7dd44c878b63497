package proxy

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"
)

// run keeps the pool filled until ctx is done: it replaces what the server has
// closed and what is about to retire, and repeats failed dials.
func (p *pool) run(ctx context.Context) {
	p.mu.Lock()
	p.ctx = ctx
	p.fillLocked()
	p.mu.Unlock()
	tick := time.NewTicker(inspectEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-tick.C:
			p.inspect()
		}
		p.mu.Lock()
		p.fillLocked()
		p.mu.Unlock()
	}
}

// inspect looks at the idle upstreams: those that the server has closed and
// those that are idle for too long are dropped, those that have been told
// something take it in.
func (p *pool) inspect() {
	now := time.Now()
	var dead, idleLong, old, told []*Upstream
	var asked *Upstream // one at a time
	p.mu.Lock()
	kept := p.idle[:0]
	spare := len(p.idle) - p.cfg.MinIdle
	for _, u := range p.idle {
		switch p.verdict(u, now, spare > 0) {
		case verdictDead:
			dead = append(dead, u)
		case verdictIdle:
			idleLong = append(idleLong, u)
			spare--
		case verdictOld:
			old = append(old, u)
			spare--
		case verdictTold:
			told = append(told, u)
		default:
			if asked == nil && p.ask != nil && u.onStandby() && now.Sub(u.asked) >= standbyAskEvery {
				asked = u
				continue
			}
			if now.Sub(u.opened) > inspectEvery {
				u.newborn, p.doubted, p.stillborn = false, nil, 0
			}
			kept = append(kept, u)
		}
	}
	clear(p.idle[len(kept):])
	p.idle = kept
	p.mu.Unlock()
	for _, u := range dead {
		p.unfit(u)
	}
	for _, u := range idleLong {
		p.drop(u, "idle_timeout")
	}
	for _, u := range old {
		p.mu.Lock()
		why := p.retiredLocked(u, now)
		p.mu.Unlock()
		p.drop(u, why)
	}
	for _, u := range told {
		if u.absorb() {
			p.give(u)
		} else {
			p.drop(u, "unfit")
		}
	}
	if asked != nil {
		p.askStandby(asked, now)
	}
}

// standbyAskEvery is how often an idle upstream on a standby is asked whether the
// server is one still: of a promotion it tells only who asks something.
const standbyAskEvery = 2 * time.Second

// askStandby lets a standby tell whether it was promoted. Then no function may be
// told otherwise, and the other idle upstreams on it are replaced.
func (p *pool) askStandby(u *Upstream, now time.Time) {
	p.work.Add(1) // run is in it; close waits
	p.ask(u, func(fit bool) {
		defer p.work.Done()
		u.asked = now
		if !fit {
			p.drop(u, "unfit")
			return
		}
		if !u.onStandby() {
			p.dropStandbys(u)
		}
		p.give(u)
	})
}

// dropStandbys drops the idle upstreams that still believe what their server has
// denied to u.
func (p *pool) dropStandbys(u *Upstream) {
	var old []*Upstream
	p.mu.Lock()
	p.idle = slices.DeleteFunc(p.idle, func(v *Upstream) bool {
		if v.server != u.server || !v.onStandby() {
			return false
		}
		old = append(old, v)
		return true
	})
	p.mu.Unlock()
	for _, v := range old {
		p.drop(v, reasonChanged)
	}
}

type verdict int

const (
	verdictKeep verdict = iota
	verdictDead
	verdictIdle
	verdictOld
	verdictTold
)

func (p *pool) verdict(u *Upstream, now time.Time, spare bool) verdict {
	switch u.peek() {
	case peekClosed:
		return verdictDead
	case peekBytes:
		return verdictTold
	}
	if spare && p.retiredLocked(u, now) != "" { // the others are replaced first
		return verdictOld
	}
	if spare && p.cfg.IdleTimeout > 0 && now.Sub(u.idleFrom) > p.cfg.IdleTimeout.Std() {
		return verdictIdle
	}
	return verdictKeep
}

// fillLocked starts as many dials as are wanted and allowed: for each waiting
// function, for min_idle, and for idle upstreams that are to be replaced.
func (p *pool) fillLocked() {
	if p.closed || p.ctx == nil || p.ctx.Err() != nil {
		return
	}
	now := time.Now()
	if p.failure != nil && now.Before(p.failure.until) {
		return
	}
	old := p.retireLocked(now)
	want := max(len(p.waiters), p.cfg.MinIdle-(len(p.idle)-old)) - p.dialling
	room := min(p.cfg.Max-p.open, parallelDials) - p.dialling
	if p.failure != nil {
		room = min(room, 1-p.dialling) // one tries whether it works again
	}
	for range min(want, room) {
		p.dialling++
		p.work.Go(p.dial) // ends with its timeouts or with the context of run; close waits for it
	}
}

// retireLocked counts the idle upstreams whose time is over. They stay in use
// until their replacement is there, unless there is no room for it: then the
// oldest makes room.
func (p *pool) retireLocked(now time.Time) (old int) {
	for _, u := range p.idle {
		if p.retiredLocked(u, now) != "" {
			old++
		}
	}
	if old > 0 && p.open+p.dialling >= p.cfg.Max && p.dialling == 0 {
		p.dropOldLocked(now)
		old--
	}
	return old
}

// dropOldLocked closes one idle upstream whose time is over.
func (p *pool) dropOldLocked(now time.Time) {
	i := slices.IndexFunc(p.idle, func(u *Upstream) bool { return p.retiredLocked(u, now) != "" })
	if i < 0 {
		return
	}
	u, why := p.idle[i], p.retiredLocked(p.idle[i], now)
	p.idle = slices.Delete(p.idle, i, i+1)
	p.open--
	u.close()                                 // does not wait for anybody
	p.work.Go(func() { p.on.closed(u, why) }) // writes a log: not under the lock; close waits for it
}

// dial makes one upstream and puts it to use.
func (p *pool) dial() {
	p.mu.Lock()
	epoch := p.trustEpoch
	p.mu.Unlock()
	u, err := p.make(p.ctx)
	if err != nil {
		p.failedToDial(err)
		return
	}
	u.chance, u.trustEpoch = rand.Float64(), epoch
	p.on.opened(u)
	p.mu.Lock()
	p.dialling--
	p.open++
	if u.newborn = true; p.failure != nil {
		p.doubted, p.failure = p.failure, nil
	}
	if len(p.idle) >= p.cfg.MinIdle {
		p.dropOldLocked(time.Now())
	}
	p.mu.Unlock()
	p.give(u)
}

// stillbornAge is how old an upstream may be that was never any good. One that is
// older was, whether somebody looked or not.
const stillbornAge = 2 * time.Second

// stillbornMost is how many in a row make a failed dial: one or two may have been
// ended by somebody else, who has nothing against the next.
const stillbornMost = 3

// errStillborn is a login that was good for nothing.
var errStillborn = errors.New("the server lets us in and then closes the connection, or says what nobody has asked: its log says why")

// proved notes that an upstream was fit when it was to be handed out.
func (p *pool) proved(u *Upstream) {
	if !u.newborn { // as most are
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	u.newborn, p.doubted, p.stillborn = false, nil, 0
}

// unfit drops an upstream that was not fit when it was to be handed out. If it had
// only just been made, as others in front of it, that is a failed dial: a server
// that ends every session at its start is not to be dialled again and again.
func (p *pool) unfit(u *Upstream) {
	stillborn := u.newborn && time.Since(u.opened) <= stillbornAge
	p.mu.Lock()
	if stillborn {
		p.stillborn++
	}
	if !stillborn || p.stillborn < stillbornMost {
		p.mu.Unlock()
		p.drop(u, "closed by the server")
		return
	}
	p.open--
	p.dialling++
	if p.failure == nil {
		p.failure = p.doubted
	}
	p.mu.Unlock()
	u.close()
	p.on.closed(u, "unfit from the start")
	p.failedToDial(&dialError{server: u.server.String(), err: errStillborn})
}

// failedToDial notes why and tells those who wait, if there is no upstream
// that could still become free for them.
func (p *pool) failedToDial(err error) {
	p.mu.Lock()
	p.dialling--
	if p.ctx.Err() != nil {
		p.mu.Unlock()
		return
	}
	p.failure = nextFailure(p.failure, err)
	retryIn := time.Until(p.failure.until)
	var told []*waiter
	if p.open == 0 && p.dialling == 0 {
		told, p.waiters = p.waiters, nil
	}
	p.mu.Unlock()
	for _, w := range told {
		w.deliver(nil, err)
	}
	time.AfterFunc(retryIn, p.nudge) // fires at most once more after run has ended, into a channel
	p.on.failed(err, retryIn)
}

// nextFailure doubles the delay after each failure in a row, up to a bound, and
// shakes it by a fifth, so that many daemons do not come back as one.
func nextFailure(before *failedDial, err error) *failedDial {
	first, last := firstDelay, lastDelay
	if lasting(err) {
		first, last = firstLastingDelay, lastLastingDelay
	}
	delay := first
	switch {
	case before == nil:
	case time.Now().Before(before.until): // one of several dials at once
		delay = min(max(before.delay, first), last)
	default:
		delay = min(max(before.delay*2, first), last)
	}
	shaken := time.Duration(float64(delay) * (0.8 + 0.4*rand.Float64()))
	return &failedDial{err: err, until: time.Now().Add(shaken), delay: delay}
}

// forget lets the next dial happen at once, after the configuration has changed.
func (p *pool) forget() {
	p.mu.Lock()
	p.failure = nil
	p.mu.Unlock()
	p.nudge()
}
