package tests

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/handoff"
	"pghandoff/pgwire"
	"pghandoff/tests/testpg"
)

// goldenPatience bounds every trace on every way.
const goldenPatience = 10 * time.Second

// play runs a trace on a connection and returns all that the server's side said.
// An error says that it did not come to what the script waits for. look knows
// what was said before, cancel cancels what runs.
func play(conn net.Conn, look rendering, cancel canceller, steps []step) (all []said, err error) {
	conn.SetDeadline(time.Now().Add(goldenPatience))
	p := &player{conn: conn, frames: pgwire.NewFrameReader(conn, 64<<20), look: look}
	for i, s := range steps {
		if s.until != "" {
			if err := p.until(s.until); err != nil {
				return p.all, fmt.Errorf("line %d: %w", s.line, err)
			}
			continue
		}
		if s.cancel {
			if err := cancel(&p.look); err != nil {
				return p.all, fmt.Errorf("line %d: %w", s.line, err)
			}
		}
		p.out = append(p.out, s.send...)
		if s.slowly {
			for _, b := range p.out {
				conn.Write([]byte{b}) // whoever hangs up is seen by reading
			}
			p.out = nil
		} else if i+1 == len(steps) || steps[i+1].until != "" || steps[i+1].slowly {
			conn.Write(p.out)
			p.out = nil
		}
	}
	return p.all, nil
}

// canceller cancels what runs in the session of which a rendering knows the key,
// and returns when the cancel request is through.
type canceller func(*rendering) error

// cancelAt is a canceller that sends a cancel request to a socket.
func cancelAt(path string) canceller {
	return func(r *rendering) error {
		conn, err := net.Dial("unix", path)
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(goldenPatience))
		if _, err := conn.Write(pgwire.AppendCancelRequest(nil, r.pid, r.key)); err != nil {
			return err
		}
		_, err = io.ReadAll(conn)
		return err
	}
}

type player struct {
	conn   net.Conn
	frames *pgwire.FrameReader
	look   rendering
	out    []byte
	all    []said
}

// until reads up to a message that reads like want.
func (p *player) until(want string) error {
	for {
		s, err := p.next(strings.HasPrefix(want, "byte "))
		if err != nil {
			return fmt.Errorf("waiting for %s: %w", want, err)
		}
		p.all = append(p.all, s)
		switch line := p.look.line(s); {
		case strings.HasPrefix(line, want):
			return nil
		case s.end:
			return fmt.Errorf("waiting for %s: the stream ended", want)
		}
	}
}

// next reads a message, or a single byte.
func (p *player) next(single bool) (s said, err error) {
	if single {
		s.body = make([]byte, 1)
		_, err = io.ReadFull(p.conn, s.body)
	} else {
		var body []byte
		s.typ, body, err = p.frames.Next()
		s.body = slices.Clone(body)
	}
	var timeout net.Error
	if errors.Is(err, pgwire.ErrProtocol) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &timeout) && timeout.Timeout() {
		return s, err
	}
	if err != nil { // also if it hung up with something of ours unread
		return said{end: true}, nil
	}
	return s, nil
}

// finish says goodbye and reads what is left, which is part of the transcript.
func finish(conn net.Conn, all []said) ([]said, error) {
	if n := len(all); n > 0 && all[n-1].end {
		return all, nil
	}
	more, err := play(conn, rendering{}, nil, []step{{send: message('X', "")}, {until: endOfStream}})
	return append(all, more...), err
}

// transcript renders what was said.
func transcript(r *rendering, all []said) (lines []string) {
	for _, s := range all {
		lines = append(lines, r.line(s))
	}
	return lines
}

// golden is the bench on which traces run.
type golden struct {
	pg *throwaway.Cluster
	d  *daemon
}

// way is one way to the server.
type way struct {
	name string
	run  func(*testing.T, *golden, *trace) ([]string, error)
}

// played runs a trace on a connection that stands in front of a start-up; cancel
// requests go to socket.
func played(t *testing.T, conn net.Conn, socket string, tr *trace) ([]string, error) {
	t.Helper()
	defer conn.Close()
	var r rendering
	if !tr.startup {
		all, err := play(conn, r, nil, plainStart().steps)
		if err != nil {
			t.Fatalf("start-up: %v: %q", err, transcript(&r, all))
		}
		for _, s := range all {
			r.line(s) // tells it the pid
		}
	}
	all, err := play(conn, r, cancelAt(socket), tr.steps)
	if err == nil {
		all, err = finish(conn, all)
	}
	return transcript(&r, all), err
}

func dialUnix(t *testing.T, path string) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func directly(t *testing.T, g *golden, tr *trace) ([]string, error) {
	path := filepath.Join(g.pg.SocketDir, fmt.Sprintf(".s.PGSQL.%d", g.pg.Port))
	return played(t, dialUnix(t, path), path, tr)
}

func byWire(t *testing.T, g *golden, tr *trace) ([]string, error) {
	return played(t, dialUnix(t, g.wire()), g.wire(), tr)
}

func (g *golden) wire() string { return filepath.Join(g.d.runDir, ".s.PGSQL.5432") }

func (g *golden) acquire(t *testing.T, state handoff.State, parameters map[string]string) (*handoff.Lease, error) {
	return handoff.Acquire(t.Context(), handoff.Request{Socket: filepath.Join(g.d.runDir, "handoff.sock"), Database: "orders", User: "app",
		State: state, Parameters: parameters})
}

// byHandoff runs a trace on a lease that stands in front of its start-up.
func byHandoff(t *testing.T, g *golden, tr *trace) ([]string, error) {
	l, err := g.acquire(t, handoff.Startup, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return played(t, l.Conn(), g.wire(), tr)
}

// byReady runs a trace on a lease that stands at ReadyForQuery. Of the start-up
// that the trace may have the reply takes the place.
func byReady(t *testing.T, g *golden, tr *trace) ([]string, error) {
	steps := tr.steps
	var parameters map[string]string
	if tr.startup {
		parameters, steps = steps[0].request, steps[2:]
	}
	l, err := g.acquire(t, handoff.Ready, parameters)
	var refusal *handoff.Refusal
	if errors.As(err, &refusal) {
		line := fmt.Sprintf("ErrorResponse FATAL %s M=%q", refusal.SQLState, refusal.Message)
		if refusal.Hint != "" {
			line += fmt.Sprintf(" H=%q", refusal.Hint)
		}
		return []string{line, endOfStream}, nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var told []string
	if tr.startup {
		for name, value := range l.Parameters {
			told = append(told, fmt.Sprintf("ParameterStatus %s %q", name, value))
		}
		slices.Sort(told)
	}
	r := rendering{pid: l.PID, started: true}
	all, err := play(l.Conn(), r, func(*rendering) error { return l.Cancel(t.Context()) }, steps)
	if err == nil {
		all, err = finish(l.Conn(), all)
	}
	return append(told, transcript(&r, all)...), err
}

// toldByReply is what a reply on the handoff socket makes of the messages of a
// start-up: the parameters in no order, or the error.
func toldByReply(lines []string) (out []string) {
	i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "ReadyForQuery") })
	for _, l := range lines[:max(i, 0)] {
		if strings.HasPrefix(l, "ParameterStatus") {
			out = append(out, l)
		}
	}
	slices.Sort(out)
	if i < 0 {
		i = max(slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "ErrorResponse") })-1, -1)
	}
	return append(out, lines[i+1:]...)
}

// hasRequest tells traces whose start-up a request on the handoff socket can
// stand for.
func (tr *trace) hasRequest() bool {
	if len(tr.steps) < 2 || tr.steps[0].request == nil {
		return false
	}
	until := tr.steps[1].until
	return strings.HasPrefix(until, "ReadyForQuery") || strings.HasPrefix(until, "ErrorResponse")
}

// expected is what pghandoff has to say where PostgreSQL says direct.
func (d *difference) expected(direct []string) []string {
	if len(d.whole) > 0 {
		return d.whole
	}
	out := slices.Clone(direct)
	for _, e := range d.edits { // another version of the server may not say it
		if i := slices.IndexFunc(out, func(l string) bool { return strings.HasPrefix(l, e.from) }); i >= 0 {
			out = slices.Replace(out, i, i+1, e.to...)
		}
	}
	return out
}

// diff shows where two transcripts part, or is empty.
func diff(want, got []string) string {
	i := 0
	for i < len(want) && i < len(got) && want[i] == got[i] {
		i++
	}
	if i == len(want) && i == len(got) {
		return ""
	}
	part := func(lines []string) string {
		from, to := max(0, i-2), min(len(lines), i+4)
		return "  " + strings.Join(lines[min(from, to):to], "\n  ")
	}
	return fmt.Sprintf("from message %d on, PostgreSQL (%d messages):\n%s\npghandoff (%d messages):\n%s", i+1, len(want), part(want), len(got), part(got))
}

// newGolden starts a server and a daemon with a route of each database.
func newGolden(t *testing.T, pool string) *golden {
	t.Helper()
	pg := testpg.Start(t, testpg.With(func(c *throwaway.Config) { c.Databases = []string{"app"} }))
	if _, err := pg.Psql(t.Context(), "create role golden; grant golden to app"); err != nil {
		t.Fatal(err)
	}
	d := newDaemon(t)
	d.configure(pg, settings{Pool: pool, Route: fmt.Sprintf(`  app:
    servers: ["127.0.0.1:%d"]
    user: %q
    password: {file: %q}
    tls: {identity: app}
    pool: {min_idle: 0, max: 1}
    allow: [any: true]`, pg.Port, pg.Role, filepath.Join(d.dir, "password"))})
	d.start("serve", "--config", d.config)
	d.awaitWarm()
	return &golden{pg: pg, d: d}
}

// oneUpstream makes each lease get the session of the one before, if that is
// still there.
const oneUpstream = "min_idle: 1, max: 1, wait_timeout: 10s"

// Proves that a function which speaks the protocol through pghandoff is
// answered as PostgreSQL itself would, message by message, and that the next
// function finds nothing of what the one before has done.
func TestGoldenTraces(t *testing.T) {
	benches := make(chan *golden, 2) // most of the time is waiting, for one process or another
	for range cap(benches) {
		benches <- newGolden(t, oneUpstream)
	}
	g := <-benches
	probe := readProbe(t)
	clean, err := directly(t, g, probe)
	if err != nil {
		t.Fatalf("the probe: %v\n%s", err, strings.Join(clean, "\n"))
	}
	benches <- g
	for _, tr := range readTraces(t) {
		t.Run(tr.file+"/"+tr.name, func(t *testing.T) {
			t.Parallel()
			g := <-benches
			defer func() { benches <- g }()
			g.compare(t, tr, probe, clean)
		})
	}
}

// compare runs a trace on every way and looks behind each with the probe, which
// says clean at a new session.
func (g *golden) compare(t *testing.T, tr, probe *trace, clean []string) {
	direct, err := directly(t, g, tr)
	if err != nil {
		t.Fatalf("the script does not fit PostgreSQL: %v\n%s", err, strings.Join(direct, "\n"))
	}
	for _, w := range tr.ways() {
		want := tr.differs.expected(direct)
		if w.name == "handoff, ready" && tr.startup {
			want = toldByReply(want)
		}
		got, err := w.run(t, g, tr)
		if d := diff(want, got); d != "" {
			t.Errorf("%s: %s (%v)", w.name, d, err)
		}
		if left := diff(clean, g.probe(t, w, probe)); left != "" {
			t.Errorf("%s: the next function is not as at a new session: %s", w.name, left)
		}
	}
}

// ways are those through pghandoff that fit a trace.
func (tr *trace) ways() []way {
	all := []way{{"wire", byWire}}
	if !tr.startup || tr.hasRequest() {
		all = append(all, way{"handoff, ready", byReady})
	}
	if tr.startup {
		all = append(all, way{"handoff, startup", byHandoff})
	}
	return slices.DeleteFunc(all, func(w way) bool { return tr.only != "" && w.name != tr.only })
}

// probe looks at what the next function gets, by the way of the last one.
func (g *golden) probe(t *testing.T, w way, probe *trace) []string {
	t.Helper()
	run := byReady
	if w.name == "wire" {
		run = byWire
	}
	got, err := run(t, g, probe)
	if err != nil {
		t.Errorf("%s: the probe: %v", w.name, err)
	}
	return got
}

// readProbe returns what the next function asks.
func readProbe(t *testing.T) *trace {
	t.Helper()
	all, err := parseTraces("probe", readFile(t, "testdata/golden/probe/probe.txt"))
	if err != nil || len(all) != 1 {
		t.Fatalf("%d probes, %v", len(all), err)
	}
	return all[0]
}
