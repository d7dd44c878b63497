package proxy

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/pgwire"
)

// The requests that may stand before a start-up message.
var (
	sslRequest    = []byte{0, 0, 0, 8, 4, 210, 22, 47}
	gssencRequest = []byte{0, 0, 0, 8, 4, 210, 22, 48}
)

func TestWireSessionOneByteAtATime(t *testing.T) {
	h := build(t, nil)
	f := h.wire()
	for _, b := range [][]byte{sslRequest, gssencRequest} {
		for i := range b {
			f.send(b[i : i+1])
		}
		if got := f.byte(); got != 'N' {
			t.Fatalf("answered by %q", got)
		}
	}
	for _, b := range start() {
		f.send([]byte{b})
	}
	f.want(welcome)
	for _, b := range query("echo mine") {
		f.send([]byte{b})
	}
	f.want("D(mine)C(echo)ZI")
	f.send(pgwire.AppendTerminate(nil))
	f.want(".")
	h.empty()
	h.warm("orders", 1)
}

// byte reads one byte.
func (f *function) byte() byte {
	f.t.Helper()
	var b [1]byte
	f.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := f.Read(b[:]); err != nil {
		f.t.Fatal(err)
	}
	return b[0]
}

func TestStartupAndWhatStandsBehindItInOnePacket(t *testing.T) {
	h := build(t, nil)
	f := h.wire()
	f.send(start(), query("echo first"), query("echo second"))
	f.want(welcome)
	f.want("D(first)C(echo)ZI")
	f.want("D(second)C(echo)ZI")
	last := h.wire()
	last.send(start("TimeZone", "Asia/Tokyo"), query("echo third"), pgwire.AppendTerminate(nil)) // it has to wait, too
	f.Close()
	if got := last.says(); !strings.Contains(got, "S(TimeZone=Asia/Tokyo)") {
		t.Errorf("told %s", got)
	}
	last.want("D(third)C(echo)ZI")
	last.want(".")
	h.empty()
}

func TestEncryptionIsDeclinedOnceEach(t *testing.T) {
	h := build(t, nil)
	for name, c := range map[string]struct {
		declined [][]byte // each is answered N
		then     []byte
		told     string
	}{
		"SSL twice":             {[][]byte{sslRequest}, sslRequest, "E(08P01)"},
		"GSS twice":             {[][]byte{gssencRequest}, gssencRequest, "E(08P01)"},
		"SSL, then GSS":         {[][]byte{sslRequest, append(gssencRequest[:8:8], start()...)}, nil, "E(08P01)"}, // bytes behind it
		"SSL with bytes behind": {[][]byte{append(sslRequest[:8:8], start()...)}, nil, "E(08P01)"},
		"GSS with bytes behind": {[][]byte{append(gssencRequest[:8:8], 'x')}, nil, "E(08P01)"},
		"SSL, then start-up":    {[][]byte{sslRequest}, start(), welcome},
	} {
		t.Run(name, func(t *testing.T) {
			f := h.wire()
			f.t = t
			for _, request := range c.declined {
				f.send(request)
				if f.byte() != 'N' {
					t.Fatal("not declined")
				}
			}
			if c.then != nil {
				f.send(c.then)
			}
			f.want(c.told)
			f.Close()
			h.empty()
			h.warm("orders", 1)
		})
	}
}

func TestStartupThatIsNotTheProtocolIsToldSo(t *testing.T) {
	h := build(t, nil)
	for name, c := range map[string]struct{ packet, told string }{
		"HTTP":           {"GET / HTTP/1.1\r\n\r\n", "E(08P01)"},
		"too short":      {"\x00\x00\x00\x07\x00\x03\x00\x00", "E(08P01)"},
		"too long":       {"\x00\x01\x00\x00", "E(08P01)"},
		"protocol 2":     {"\x00\x00\x00\x08\x00\x02\x00\x00", "E(0A000)"},
		"no user":        {string(start("user", "")), "E(28000)"},
		"no such route":  {string(start("database", "nowhere")), "E(3D000)"},
		"replication":    {string(start("replication", "true")), welcome},
		"refused by us":  {string(start("role", "root")), "E(0A000)"},
		"refused there":  {string(start("refused", "x")), "E(22023)"},
		"other protocol": {string(start("_pq_.x", "1")), "v" + welcome},
	} {
		t.Run(name, func(t *testing.T) {
			f := h.wire()
			f.t = t
			f.send([]byte(c.packet))
			got := f.says()
			if strings.TrimPrefix(got, "R") != strings.TrimPrefix(c.told, "R") {
				t.Errorf("told %s, want %s", got, c.told)
			}
			f.Close()
			h.empty()
			h.warm("orders", 1)
		})
	}
}

func TestFunctionThatSendsNoStartupIsGivenUp(t *testing.T) {
	h := build(t, func(p *plan) { p.patient.startupPatience = 20 * time.Millisecond })
	quiet, slow := h.wire(), &function{connOf(h.come(start()[:9])), t}
	defer slow.Close()
	quiet.want(".")
	slow.want(".")
	h.empty()
}

func TestFunctionGoneWhileItWaits(t *testing.T) {
	h := build(t, nil)
	f := h.wire()
	f.send(start())
	f.want(welcome)
	gone, stays := h.wire(), h.wire()
	gone.send(start())
	h.queued(1)
	stays.send(start())
	h.queued(2)
	gone.Close()
	h.queued(1)
	f.Close()
	stays.want(welcome)
	stays.Close()
	h.empty()
	if h.dials() != 2 { // one a route
		t.Errorf("%d dials", h.dials())
	}
}

func TestFunctionGoneWhileItsParametersAreSet(t *testing.T) {
	h := build(t, nil)
	h.gated.Store(true)
	for i, opening := range [][]byte{nil, sslRequest} { // one is watched by the loop, one not yet
		f := h.wire()
		if opening != nil {
			f.send(opening)
			f.byte()
		}
		f.send(start("TimeZone", []string{"CET", "EET"}[i]))
		<-h.hung
		f.Close()
		if opening != nil {
			h.eventually("the session is over", func() bool { return h.visitors() == 0 })
		}
		h.gate <- struct{}{}
		h.empty()
		h.warm("orders", 1)
	}
	h.gated.Store(false)
	f := h.wire()
	f.send(start(), query("echo mine"))
	if got := f.says(); !strings.HasPrefix(got, "R") || !strings.HasSuffix(got, "KZI") {
		t.Error(got)
	}
	f.want("D(mine)C(echo)ZI")
	if h.dials() != 2 {
		t.Errorf("%d dials: the upstream was not used again", h.dials())
	}
}

func (h *house) visitors() (n int) {
	h.d.onFront(func() { n = len(h.d.visitors) })
	return n
}

func TestWaitingFunctionIsToldSoAndThenServed(t *testing.T) {
	h := build(t, func(p *plan) { p.pool.WaitNotice = 1e6 })
	f, waits := h.wire(), h.wire()
	f.send(start())
	f.want(welcome)
	waits.send(start())
	if a, b := waits.byte(), waits.skip(8); a != 'R' || binary.BigEndian.Uint32(b) != 8 {
		t.Errorf("%q, %v in front of the notice", a, b)
	}
	h.eventually("a notice", func() bool { n, _ := unix.IoctlGetInt(waits.fd(), unix.TIOCINQ); return n > 0 })
	f.Close()
	waits.want("N(00000)" + strings.TrimPrefix(welcome, "R"))
}

// skip reads n bytes.
func (f *function) skip(n int) (p []byte) {
	f.t.Helper()
	for range n {
		p = append(p, f.byte())
	}
	return p
}

// fd returns the descriptor, for as long as the function is open.
func (f *function) fd() (fd int) {
	raw, err := f.SyscallConn()
	if err != nil {
		f.t.Fatal(err)
	}
	raw.Control(func(n uintptr) { fd = int(n) })
	return fd
}

func TestFullPoolRefusesAfterTheWait(t *testing.T) {
	h := build(t, func(p *plan) { p.pool.WaitTimeout = 20e6 })
	f, late := h.wire(), h.wire()
	f.send(start())
	f.want(welcome)
	late.send(start())
	late.want("E(53300)")
	f.Close()
	h.empty()
}
