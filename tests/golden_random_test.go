package tests

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pghandoff/pgwire"
	"pghandoff/tests/testpg"
)

// scraps are messages that mean something else in each order.
var scraps = []string{
	`Parse "" "select 1"`, `Parse "" "select nonsense"`, `Parse "" "select 1/0"`, `Parse "" "copy scrap from stdin"`, `Parse "" "copy scrap to stdout"`,
	`Bind "" ""`, `Bind "" ""`, `Execute "" 0`, `Execute "" 0`, `Execute "" 0`, `Describe S ""`, `Close P ""`, `Flush`, `Message H "body"`,
	`Sync`, `Sync`, `Sync`, `Message S "body"`,
	`Query "select 2"`, `Query ""`, `Query "select nonsense"`, `Query "begin"`, `Query "rollback"`, `Query "copy scrap from stdin"`, `Query "copy scrap to stdout; select 3"`,
	`FunctionCall 177 "40" "2"`, `FunctionCall 177 "x" "2"`,
	`CopyData "1\n"`, `CopyData "x\n"`, `CopyDone`, `CopyDone`, `CopyFail "no"`,
}

// courses are beginnings that a random order seldom has.
var courses = [][]string{
	nil, nil, nil,
	{`Parse "" "copy scrap from stdin"`, `Bind "" ""`, `Execute "" 0`, `Flush`},
	{`Parse "" "copy scrap from stdin"`, `Bind "" ""`, `Execute "" 0`, `Sync`},
	{`Query "copy scrap from stdin"`},
	{`Parse "" "select nonsense"`},
	{`Parse "" "select nonsense"`, `Flush`, `Query "select 2"`},
}

// tracked is a connection to PostgreSQL that a tracker follows.
type tracked struct {
	net.Conn
	tracker pgwire.Tracker
	said    []byte
	ended   bool
	script  string // for failures
}

func trackedSession(t *testing.T, path string) *tracked {
	t.Helper()
	conn := dialUnix(t, path)
	t.Cleanup(func() { conn.Close() })
	if all, err := play(conn, rendering{}, nil, plainStart().steps); err != nil {
		t.Fatalf("start-up: %v: %q", err, transcript(&rendering{}, all))
	}
	s := &tracked{Conn: conn, tracker: pgwire.NewTracker('I')}
	s.say(t, `Query "create temp table scrap (a int)"`)
	s.listen(t, goldenPatience, s.tracker.Quiet)
	return s
}

func (s *tracked) say(t *testing.T, line string) {
	t.Helper()
	words, err := splitWords(line)
	if err != nil {
		t.Fatal(err)
	}
	p, err := frontend(words)
	if err != nil {
		t.Fatal(err)
	}
	if n, end, err := s.tracker.Frontend(p); n != len(p) || end || err != nil {
		t.Fatalf("%s: %d of %d bytes, %v, %v", line, n, len(p), end, err)
	}
	s.Write(p) // whoever hangs up is seen by reading
}

// listen reads until the server is silent for a while, or until enough.
func (s *tracked) listen(t *testing.T, while time.Duration, enough func() bool) {
	t.Helper()
	var p [64 << 10]byte
	for !s.ended && !enough() {
		s.SetReadDeadline(time.Now().Add(while))
		n, err := s.Read(p[:])
		s.said = append(s.said, p[:n]...)
		if _, fault := s.tracker.Backend(p[:n]); fault != nil {
			t.Fatalf("%s: the tracker takes PostgreSQL for a server that does not speak the protocol: %v", s.script, fault)
		}
		if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
			return
		}
		s.ended = err != nil
	}
}

func never() bool { return false }

// Proves that the tracker counts as PostgreSQL does, whatever a function sends
// in whatever order and whenever the answers come: a session that it calls quiet
// answers the next query with that query's answer, one that it calls settling
// becomes quiet or uncertain by itself, and no answer comes that it does not
// expect.
func TestTrackerCountsAsPostgreSQL(t *testing.T) {
	pg := testpg.Shared(t)
	path := filepath.Join(pg.SocketDir, fmt.Sprintf(".s.PGSQL.%d", pg.Port))
	random := rand.New(rand.NewPCG(5, 8))
	var s *tracked
	quiet := 0
	for i := range goldenScraps {
		if s == nil {
			s = trackedSession(t, path)
		}
		script := randomScript(random)
		s.script = fmt.Sprintf("script %d: %s", i, strings.Join(script, "; "))
		for _, line := range script {
			if line == "wait" {
				s.listen(t, time.Millisecond, never)
				continue
			}
			s.say(t, line)
		}
		s.listen(t, 20*time.Millisecond, s.tracker.Quiet)
		if s.settled(t) {
			quiet++
		} else {
			s.Close()
			s = nil
		}
	}
	if quiet < goldenScraps/8 {
		t.Errorf("only %d of %d sessions are called quiet", quiet, goldenScraps)
	}
}

// goldenScraps is how many scripts are tried.
const goldenScraps = 200

func randomScript(random *rand.Rand) []string {
	script := slices.Clone(courses[random.IntN(len(courses))])
	for range 1 + random.IntN(10) {
		if random.IntN(3) == 0 {
			script = append(script, "wait")
		}
		script = append(script, scraps[random.IntN(len(scraps))])
	}
	if random.IntN(2) == 0 {
		script = append(script, "Sync")
	}
	return script
}

// settled reports whether the session may be used on, as the tracker says, and
// proves that this is right.
func (s *tracked) settled(t *testing.T) bool {
	t.Helper()
	if !s.ended && s.tracker.Settling() && !s.tracker.Quiet() {
		s.listen(t, time.Second, s.tracker.Quiet)
	}
	if s.ended {
		return false
	}
	if s.tracker.Settling() && !s.tracker.Quiet() {
		t.Fatalf("%s: PostgreSQL is silent, and the tracker waits for %d answers", s.script, s.tracker.Owed())
	}
	if !s.tracker.Quiet() {
		return false
	}
	s.said = nil
	s.say(t, `Query "rollback; select 'marker'"`)
	s.listen(t, goldenPatience, s.tracker.Quiet)
	said := bytes.SplitAfter(s.said, []byte("Z\x00\x00\x00\x05"))
	if len(said) != 2 || !bytes.Contains(said[0], []byte("marker")) || string(said[1]) != "I" {
		t.Fatalf("%s: the tracker says quiet, and the next query is answered %q", s.script, s.said)
	}
	return true
}
