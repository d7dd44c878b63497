package proxy

import (
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
	if u.tracker.Status() != 'I' {
		out, err := u.exchange(pgwire.AppendQuery(nil, "ROLLBACK"), 1, resetPatience)
		if err != nil || out.Refused != nil || out.Status != 'I' {
			return "rollback did not succeed"
		}
	}
	switch reset {
	case "close":
		return "reset: close"
	case "none":
		return ""
	}
	// DISCARD ALL ends with no role set. A role that the server itself sets at
	// login (ALTER ROLE … SET role) comes back by RESET ROLE.
	script := pgwire.AppendQuery(nil, "DISCARD ALL")
	script = pgwire.AppendQuery(script, "RESET ROLE")
	out, err := u.exchange(script, 2, resetPatience)
	if err != nil || out.Refused != nil || out.Status != 'I' {
		return "reset did not succeed"
	}
	return ""
}
