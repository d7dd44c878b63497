package tests

import (
	"context"
	"strings"
	"testing"
	"time"

	"pghandoff/proxy/audit"
	"pghandoff/tests/testpg"
)

// Proves that the daemon serves under GODEBUG=fips140=only too, where its record
// layer cannot work and crypto/tls does all: mutual TLS, SCRAM with channel
// binding, 10 MB each way, cancel, reset, and what the server says last.
func TestServesUnderFIPSOnly(t *testing.T) {
	pg := testpg.Start(t, testpg.MTLS)
	program(t) // built without that
	t.Setenv("GODEBUG", "fips140=only")
	d := serve(t, pg, settings{TLS: "identity: app, channel_binding: require"})
	if log := d.stderr.String(); strings.Count(log, "GODEBUG=fips140=only") != 1 {
		t.Errorf("what is lost by it is not said once: %s", log)
	}
	c := d.connect()
	if got := query(t, c, "select version || ' ' || client_dn from pg_stat_ssl where pid = pg_backend_pid()"); got != "TLSv1.3 /CN=app" {
		t.Errorf("the connection is %s", got)
	}
	if got := query(t, c, "select encode(sha256(convert_to($1, 'UTF8')), 'hex')", ten); got != tenDigest() {
		t.Errorf("10 MB to the server arrive with digest %s", got)
	}
	if got := query(t, c, "select $1", ten); got != ten {
		t.Errorf("%d bytes come back of 10 MB", len(got))
	}
	e := d.awaitEvent("lease.granted", func(e audit.Event) bool { return e.Event == audit.LeaseGranted })
	if e.Upstream.TLSVersion != "TLS 1.3" || !e.Upstream.ChannelBinding || e.Upstream.ServerCertSHA256 == "" {
		t.Errorf("the audit says %+v", e.Upstream)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := d.connect().Exec(ctx, "select pg_sleep(60)"); err == nil {
		t.Error("a query is not cancelled")
	}
	d.awaitEvent("cancel.forwarded", func(e audit.Event) bool { return e.Event == audit.CancelForwarded })
	if _, err := d.connect().Exec(t.Context(), "select pg_terminate_backend(pg_backend_pid())"); sqlState(err) != "57P01" {
		t.Errorf("a session that the server ends is told %v", err)
	}
	if _, err := c.Exec(t.Context(), "set work_mem = '7MB'"); err != nil {
		t.Error(err)
	}
	c.Close(t.Context())
	for range 3 {
		c := d.connect()
		if got := query(t, c, "current_setting('work_mem')"); got == "7MB" {
			t.Error("a setting stays")
		}
		c.Close(t.Context())
	}
	d.configure(pg, settings{TLS: "identity: app, handshaker: utls"})
	if out, err := shell(t, nil, program(t), "check", "--config", d.config); err == nil || !strings.Contains(out, "set tls.handshaker to std") {
		t.Errorf("utls: %v, %s", err, out)
	}
}
