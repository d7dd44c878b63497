// Package audit writes the audit trail: one JSON object a line for every lease
// and every upstream, saying who held which backend and when.
//
// It refuses to delay whoever records: [Log.Record] only queues, and seldom has
// to wake the writer, which looks at the queue every 10 ms in a busy time. What
// does not fit in the queue of a slow disk, or on a full one, is counted and
// told in the next line that gets through ("missed"). A line that a full disk
// took half of stays, damaged, on a line of its own. It knows no secrets, so it
// can write none.
//
//	log, err := audit.Open("/var/log/pghandoff/audit.jsonl", os.Stderr)
//	log.Record(audit.Event{Event: audit.LeaseGranted, Lease: id, Route: "orders"})
package audit
