package tests

import (
	"strings"
	"testing"

	"pghandoff/proxy/audit"
	"pghandoff/tests/testpg"
)

// checkFunction proves that a container with no network, no secret and nothing
// but the run directory mounted gets a connection by either socket, and that the
// audit names its process.
func checkFunction(t *testing.T, d *docker, image string) {
	host := serve(t, testpg.Shared(t), settings{Allow: "uid: 65532"})
	for _, way := range []string{"wire", "handoff"} {
		out := d.run(t, "run", "--rm", "--network=none", "--read-only", "--cap-drop=ALL", "--volume="+host.runDir+":/run/pghandoff:ro",
			image, "demo-function", way, "/run/pghandoff")
		if !strings.Contains(out, "user app") || !strings.Contains(out, "TLSv1.3") || !strings.Contains(out, "/CN=app") {
			t.Errorf("by %s: %s", way, out)
		}
		e := host.awaitEvent("of the container", func(e audit.Event) bool { return e.Event == audit.LeaseGranted && e.Way == way })
		if e.Peer.UID != 65532 || e.Peer.PID == 0 {
			t.Errorf("by %s: the audit says %+v", way, e.Peer)
		}
	}
	if out, err := d.try(t.Context(), nil, "run", "--rm", "--network=none", "--user=65533", "--volume="+host.runDir+":/run/pghandoff:ro",
		image, "demo-function", "wire", "/run/pghandoff"); err == nil || !strings.Contains(out+err.Error(), "uid 65533 may not use route") {
		t.Errorf("another uid: %v, %s", err, out)
	}
}
