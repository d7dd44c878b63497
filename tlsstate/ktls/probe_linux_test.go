package ktls

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The answer is the kernel's own: without TLS among its upper layers there is none, and no descriptor is left in any case.
func TestProbeTellsWhatTheKernelHas(t *testing.T) {
	before := descriptors(t)
	s := Probe()
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
	t.Log(s)
	layers, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_ulp") // after the probe, which may have loaded the module
	if err != nil {
		t.Skip("this kernel does not list its upper layers: ", err)
	}
	if has := strings.Contains(" "+string(layers), " tls"); has == errors.Is(s.Err, ErrNoKernelTLS) {
		t.Errorf("the kernel lists %q, the probe says %v", layers, s)
	}
	if strings.Contains(s.String(), "\n") || !strings.HasPrefix(s.String(), "kernel TLS: ") {
		t.Errorf("%q", s)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestSupportPrintsWhatItSays(t *testing.T) {
	both := Cipher{Version: version13, Name: "AES-128-GCM", Send: true, Receive: true}
	sending := Cipher{Version: version12, Name: "AES-256-GCM", Send: true, Err: unix.EINVAL}
	none := Cipher{Version: version12, Name: "ChaCha20-Poly1305", Err: unix.ENOENT}
	for want, s := range map[string]Support{
		"kernel TLS: none (" + ErrNoKernelTLS.Error() + ")":                   {Err: ErrNoKernelTLS},
		"kernel TLS: TLS 1.3 AES-128-GCM, TLS 1.2 AES-256-GCM (sending only)": {Ciphers: []Cipher{both, sending, none}},
		"kernel TLS: none (no such file or directory)":                        {Ciphers: []Cipher{none}},
		"kernel TLS: TLS 1.2 AES-256-GCM (receiving only)":                    {Ciphers: []Cipher{{Version: version12, Name: "AES-256-GCM", Receive: true}}},
	} {
		if s.String() != want || s.Any() != strings.Contains(want, "AES-128") {
			t.Errorf("%q, not %q", s, want)
		}
	}
}

// The sizes are those of the structures in include/uapi/linux/tls.h.
func TestCryptoInfoHasTheKernelsSize(t *testing.T) {
	for i, want := range []int{40, 56, 56} {
		if got := len(ciphers[i].info(version13)); got != want {
			t.Errorf("%s: %d bytes, not %d", ciphers[i].name, got, want)
		}
	}
}
