package audit_test

import (
	"io"
	"testing"
	"time"

	"pghandoff/proxy/audit"
)

// sample is an event as a lease's end has it.
func sample(peer *audit.Peer) audit.Event {
	until := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	return audit.Event{Event: audit.LeaseReleased, Lease: "01890a5d-ac96-774b-bcce-b302099a8057", Route: "orders", User: "app",
		Application: "function", Way: "wire", Peer: peer, Upstream: &audit.Upstream{Address: "db.example.com:5432", BackendPID: 4711,
			TLSVersion: "TLS 1.3", Cipher: "TLS_AES_128_GCM_SHA256", ServerCertSHA256: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
			ServerCertNotAfter: &until, ClientCertSerial: "4096", Generation: 1, ChannelBinding: true},
		Transport: "bridge", Pooling: "session", Outcome: "client_closed", BytesIn: 400, BytesOut: 4000, Transactions: 3, WaitMicros: 40, DurationMS: 12}
}

// What an event costs altogether, the disk not counted.
func BenchmarkEvent(b *testing.B) {
	l, err := audit.Open("", io.Discard)
	if err != nil {
		b.Fatal(err)
	}
	e := sample(&audit.Peer{UID: 1000, GID: 1000, PID: 42, Exe: "/usr/bin/function"})
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		l.Record(e)
		if i%1000 == 999 {
			l.Reopen() // so that none is missed
		}
	}
	l.Close()
}

// What recording costs who records, one event at a time.
func BenchmarkRecord(b *testing.B) {
	l, err := audit.Open("", io.Discard)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	e := sample(&audit.Peer{UID: 1000, GID: 1000, PID: 42, Exe: "/usr/bin/function"})
	var spent time.Duration
	n := 0
	for b.Loop() {
		begin := time.Now()
		l.Record(e)
		spent += time.Since(begin)
		n++
		for time.Since(begin) < 20*time.Microsecond { // an event loop's other work
		}
	}
	b.ReportMetric(float64(spent.Nanoseconds())/float64(n), "ns/record")
}
