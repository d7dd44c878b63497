package proxy

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"pghandoff/pgwire"
)

// resetPatience is how long the clean-up of a session may take.
const resetPatience = 5 * time.Second

// clean makes a session that is quiet ready for the next function, on its loop,
// and calls done with the reason why the upstream cannot be used again, or "".
// It takes at most twice resetPatience, and as long as a cancel is under way: no
// cancel may hit the next function.
func (u *Upstream) clean(reset string, done func(unfit string)) {
	l := u.loop
	if !u.cancels.whenOver(func() { l.Post(func() { u.rollback(reset, done) }) }) {
		u.leave() // what the server says meanwhile is read then
		return
	}
	u.rollback(reset, done)
}

// rollback ends a transaction that the function has left open.
func (u *Upstream) rollback(reset string, done func(unfit string)) {
	switch {
	case u.doubtful.Load():
		done("a cancel may be under way")
	case u.tracker.Status() == 'I':
		u.discard(reset, done)
	default:
		u.exchange(pgwire.AppendQuery(nil, "ROLLBACK"), 1, resetPatience, func(out *pgwire.Outcome, err error) {
			if err != nil || out.Refused != nil || out.Status != 'I' || !slices.Equal(out.Done, []string{"ROLLBACK"}) {
				done("rollback did not succeed")
				return
			}
			u.discard(reset, done)
		})
	}
}

// discard forgets what the function has left in the session.
func (u *Upstream) discard(reset string, done func(unfit string)) {
	switch reset {
	case "close":
		done("reset: close")
		return
	case "none":
		done("")
		return
	}
	u.exchange(discardScript(), 2, resetPatience, func(out *pgwire.Outcome, err error) {
		if err != nil || out.Refused != nil || out.Status != 'I' || !slices.Equal(out.Done, []string{"DISCARD ALL", "RESET", "SELECT 1"}) {
			done("reset did not succeed")
			return
		}
		done("")
	})
}

// discardScript brings a session back to where its login left it. DISCARD ALL
// ends with no role set, so that one which the server itself sets at login
// (ALTER ROLE … SET role) has to come back by RESET ROLE; and it leaves the
// seed of random(), by which one function could foretell the next one's numbers.
func discardScript() []byte {
	script := pgwire.AppendQuery(nil, "DISCARD ALL")
	seed := strconv.FormatFloat(rand.Float64()*2-1, 'f', 17, 64)
	return pgwire.AppendQuery(script, "RESET ROLE; SELECT pg_catalog.setseed("+seed+")")
}
