package tlsstate

import "time"

// allowance bounds the records in a row that carry no data: a record with data gives one back, and so does a second, so
// that a key which changes every hour of an idle week is fine and what only keeps the other side busy is not.
type allowance struct {
	left     int
	refilled int64 // Unix seconds
}

const (
	// maxAllowance is how many records without data (empty, tickets, KeyUpdates, fragments of them, warnings of TLS 1.2) a
	// peer may send in a row.
	maxAllowance = 64
	// maxUpdates is how many KeyUpdates our caller may send in a row. crypto/tls gives a connection up after 16 records
	// without data, the answers to its own KeyUpdates among them.
	maxUpdates = 8
)

func newAllowance(most int) allowance { return allowance{most, time.Now().Unix()} }

// take takes one, if there is one. The clock is asked only here.
func (a *allowance) take(most int) bool {
	now := time.Now().Unix()
	if earned := now - a.refilled; earned > 0 {
		a.left = int(min(int64(a.left)+earned, int64(most)))
	}
	a.refilled = now
	if a.left == 0 {
		return false
	}
	a.left--
	return true
}

func (a *allowance) give(most int) {
	if a.left < most {
		a.left++
	}
}

// spend takes one record off what the peer may send.
func (in *inbound) spend() error {
	if !in.allowance.take(maxAllowance) {
		return broke(alertUnexpectedMessage, "more than %d records in a row carry no data", maxAllowance)
	}
	return nil
}

func (in *inbound) earn() { in.allowance.give(maxAllowance) }

// spend takes one KeyUpdate off what we may send.
func (out *outbound) spend() bool { return out.updates.take(maxUpdates) }

func (out *outbound) earn() { out.updates.give(maxUpdates) }
