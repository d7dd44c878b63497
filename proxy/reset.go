package proxy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"pghandoff/pgwire"
)

// resetPatience is how long the clean-up of a session may take.
const resetPatience = 5 * time.Second

// clean makes a session that is quiet ready for the next function. It reports
// why the upstream cannot be used again, or "". It blocks up to twice
// resetPatience and belongs in the background.
func (u *Upstream) clean(reset string) (unfit string) {
	u.cancels.Wait() // no cancel may hit the next function
	if u.doubtful.Load() {
		return "a cancel may be under way"
	}
	if u.tracker.Status() != 'I' {
		out, err := u.exchange(pgwire.AppendQuery(nil, "ROLLBACK"), 1, resetPatience)
		if err != nil || out.Refused != nil || out.Status != 'I' || !slices.Equal(out.Done, []string{"ROLLBACK"}) {
			return "rollback did not succeed"
		}
	}
	switch reset {
	case "close":
		return "reset: close"
	case "none":
		return ""
	}
	out, err := u.exchange(discardScript(), 2, resetPatience)
	if err != nil || out.Refused != nil || out.Status != 'I' || !slices.Equal(out.Done, []string{"DISCARD ALL", "RESET", "SELECT 1"}) {
		return "reset did not succeed"
	}
	return ""
}

// discardScript brings a session back to where its login left it. DISCARD ALL
// ends with no role set, so that one which the server itself sets at login
// (ALTER ROLE … SET role) has to come back by RESET ROLE; and it leaves the
// seed of random(), by which one function could foretell the next one's numbers.
func discardScript() []byte {
	script := pgwire.AppendQuery(nil, "DISCARD ALL")
	return pgwire.AppendQuery(script, fmt.Sprintf("RESET ROLE; SELECT pg_catalog.setseed(%.17f)", rand.Float64()*2-1))
}
