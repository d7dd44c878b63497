package pgwire_test

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"pghandoff/pgwire"
)

// frame builds one typed message.
func frame(typ byte, body string) string {
	n := binary.BigEndian.AppendUint32([]byte{typ}, uint32(len(body)+4))
	return string(n) + body
}

func frames(types string) string {
	var b strings.Builder
	for i := 0; i < len(types); i++ {
		switch types[i] {
		case 'I', 'T', 'e':
			status := map[byte]string{'I': "I", 'T': "T", 'e': "E"}[types[i]]
			b.WriteString(frame('Z', status))
		case 't':
			b.WriteString(frame('T', "\x00\x00"))
		case 'h':
			b.WriteString(frame('H', "x"))
		case 'H', 'S', 'c':
			b.WriteString(frame(types[i], ""))
		default:
			b.WriteString(frame(types[i], "x\x00"))
		}
	}
	return b.String()
}

// A step is ">" and messages of the function, or "<" and messages of the
// server; I, T and e stand for ReadyForQuery with that status, t for RowDescription,
// h for a Flush that has a body, which is an error.
func TestTrackerSaysWhatTheSessionIsDoing(t *testing.T) {
	for _, c := range []struct {
		name  string
		steps []string
		idle  bool
		quiet bool
		owed  int
	}{
		{"fresh", nil, true, true, 0},
		{"query under way", []string{">Q"}, false, false, 1},
		{"query answered", []string{">Q", "<tDCI"}, true, true, 0},
		{"in a transaction", []string{">Q", "<CT"}, false, true, 0},
		{"in a failed transaction", []string{">Q", "<Ee"}, false, true, 0},
		{"extended without Sync", []string{">PBDE"}, false, false, 0},
		{"extended, Flush and no Sync", []string{">PH", "<1"}, false, false, 0},
		{"extended with Sync", []string{">PBDES"}, false, false, 1},
		{"extended answered", []string{">PBDES", "<12tDCI"}, true, true, 0},
		{"three pipelined Syncs, one answer", []string{">PBESPBESPBES", "<12CI"}, false, false, 2},
		{"three pipelined Syncs, error in the middle", []string{">PBESPBESPBES", "<12CIEI12CI"}, true, true, 0},
		{"error, a query that is ignored up to the Sync", []string{">PH", "<E", ">QFBQS", "<I"}, true, true, 0},
		{"error, and the query after the Sync is not ignored", []string{">PH", "<E", ">S", "<I", ">Q", "<E"}, false, false, 1},
		{"error in front of a query without a Sync: is that ignored?", []string{">PBEQ", "<12E"}, false, false, 1},
		{"error in front of a query, and the Sync is answered", []string{">PBEQS", "<12EI"}, false, false, 1},
		{"a query without a Sync in front", []string{">PBEQS", "<12CtDCII"}, true, true, 0},
		{"a query without a Sync in front, and an error after it", []string{">PBEQ", "<12CtDCI", ">S", "<I", ">Q", "<EI"}, true, true, 0},
		{"Flush alone", []string{">H"}, true, true, 0},
		{"Flush with a body, and a query that is ignored up to the Sync", []string{">h", "<E", ">QS", "<I"}, true, true, 0},
		{"Flush with a body in front of a query: is that ignored?", []string{">hQ", "<E"}, false, false, 1},
		{"function call", []string{">F", "<VI"}, true, true, 0},
		{"COPY FROM by simple query", []string{">Q", "<G"}, false, false, 1},
		{"COPY FROM finished", []string{">Q", "<G", ">ddc", "<CI"}, true, true, 0},
		{"COPY FROM failed by the function", []string{">Q", "<G", ">ddf", "<EI"}, true, true, 0},
		{"COPY FROM failed by the server, data still coming", []string{">Q", "<G", ">d", "<EI", ">ddc"}, true, true, 0},
		{"COPY FROM after a failed one with late data", []string{">Q", "<G", ">d", "<EI", ">ddc", ">Q", "<G", ">dc", "<CI"}, true, true, 0},
		{"COPY FROM, data sent ahead as pgx does", []string{">Qddc", "<GCI"}, true, true, 0},
		{"COPY FROM, data sent ahead and more to come", []string{">Qd", "<G"}, false, false, 1},
		{"COPY FROM, data sent ahead, the end later", []string{">Qd", "<G", ">dc", "<CI"}, true, true, 0},
		{"COPY FROM, failure sent ahead", []string{">Qdf", "<GEI"}, true, true, 0},
		{"COPY FROM refused, data sent ahead", []string{">Qddc", "<EI"}, true, true, 0},
		{"COPY FROM refused, data sent ahead, then another", []string{">Qddc", "<EI", ">Q", "<G"}, false, false, 1},
		{"COPY FROM twice in one query, data sent ahead for both", []string{">Qdcdc", "<GCGCI"}, true, true, 0},
		{"COPY FROM twice in one query, data sent ahead for one", []string{">Qdc", "<GCG"}, false, false, 1},
		{"COPY FROM in the second query, data sent ahead: of which?", []string{">QdcQ", "<CI", "<G", ">c", "<CI"}, false, false, 0},
		{"COPY FROM, extended, Sync sent ahead as libpq does", []string{">PBDES", "<12nG", ">ddcS", "<CI"}, true, true, 0},
		{"COPY FROM, extended, Sync behind the data", []string{">PBDEH", "<12nG", ">ddcS", "<CI"}, true, true, 0},
		{"COPY FROM, extended, Sync within the data is ignored", []string{">PBEH", "<12G", ">dSdcS", "<CI"}, true, true, 0},
		{"COPY FROM, all sent blindly", []string{">PBEddcS", "<12GCI"}, false, false, 0},
		{"COPY FROM with pipelined queries behind", []string{">QQ", "<G"}, false, false, 2},
		{"COPY FROM, extended, fails before it reads the Sync sent ahead", []string{">PBES", "<12G", ">dcS", "<EI"}, false, false, 0},
		{"COPY FROM, extended, refused: the Sync is answered", []string{">PBES", "<12GEI", ">PBES", "<12CI"}, false, false, 0},
		{"COPY FROM, extended, Sync within the data, then an error", []string{">PBEH", "<12G", ">dS", "<E"}, false, false, 0},
		{"COPY FROM, extended, done, then an error of another statement", []string{">PBES", "<12G", ">dcS", "<CI", ">Q", "<EI"}, true, true, 0},
		{"COPY TO under way", []string{">Q", "<Hd"}, false, false, 1},
		{"COPY TO finished", []string{">Q", "<HddcCI"}, true, true, 0},
		{"notices and notifications while idle", []string{"<NAA"}, true, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, size := range []int{1, 3, 1 << 20} {
				tr := pgwire.NewTracker('I')
				for _, s := range c.steps {
					feed(t, &tr, s[0], frames(s[1:]), size)
				}
				if tr.Idle() != c.idle || tr.Quiet() != c.quiet || tr.Owed() != c.owed {
					t.Errorf("in pieces of %d: idle %v, quiet %v, owed %d; want %v, %v, %d",
						size, tr.Idle(), tr.Quiet(), tr.Owed(), c.idle, c.quiet, c.owed)
				}
			}
		})
	}
}

func feed(t *testing.T, tr *pgwire.Tracker, direction byte, data string, size int) {
	t.Helper()
	for len(data) > 0 {
		part := data[:min(size, len(data))]
		data = data[len(part):]
		var n int
		var err error
		if direction == '>' {
			n, _, err = tr.Frontend([]byte(part))
		} else {
			n, err = tr.Backend([]byte(part))
		}
		if err != nil || n != len(part) {
			t.Fatalf("%c %q: %d of %d bytes, %v", direction, part, n, len(part), err)
		}
	}
}

func TestTrackerStopsInFrontOfTerminate(t *testing.T) {
	tr := pgwire.NewTracker('I')
	q := frames("Q")
	n, terminate, err := tr.Frontend([]byte(q + frame('X', "") + "anything"))
	if n != len(q) || !terminate || err != nil {
		t.Fatalf("got %d, %v, %v", n, terminate, err)
	}
	if tr.Owed() != 1 || !tr.Settling() {
		t.Errorf("the query in front of it is lost")
	}
}

func TestTrackerRefusesWhatIsNotTheProtocol(t *testing.T) {
	for name, p := range map[string]string{
		"unknown type":       frames("Q") + "~....",
		"password message":   frames("Q") + frame('p', "secret\x00"),
		"length below 4":     frames("Q") + "Q\x00\x00\x00\x03",
		"negative length":    frames("Q") + "Q\xff\xff\xff\xff",
		"length of 1 GiB":    frames("Q") + "Q\x40\x00\x00\x00",
		"HTTP":               frames("Q") + "GET / HTTP/1.1\r\n",
		"unknown type, zero": frames("Q") + "\x00",
	} {
		t.Run(name, func(t *testing.T) {
			tr := pgwire.NewTracker('I')
			n, _, err := tr.Frontend([]byte(p))
			if !errors.Is(err, pgwire.ErrProtocol) || n != len(frames("Q")) {
				t.Fatalf("got %d, %v", n, err)
			}
			feed(t, &tr, '<', frames("CI"), 100)
			if !tr.Idle() {
				t.Errorf("nothing of it was forwarded, so the session must be reusable")
			}
		})
	}
	for name, p := range map[string]string{
		"length below 4":          "C\x00\x00\x00\x03",
		"negative length":         "D\xff\xff\xff\xff",
		"long ReadyForQuery":      frame('Z', "II"),
		"unknown status":          frame('Z', "x"),
		"ReadyForQuery unasked":   frame('Z', "I"),
		"ParameterStatus cut":     frame('S', "a\x00b"),
		"ParameterStatus unnamed": frame('S', "\x00b\x00"),
		"ParameterStatus huge":    "S\x00\x02\x00\x00",
	} {
		t.Run("server: "+name, func(t *testing.T) {
			tr := pgwire.NewTracker('I')
			n, err := tr.Backend([]byte(frame('N', "") + p))
			if !errors.Is(err, pgwire.ErrProtocol) || n != 5 {
				t.Fatalf("got %d, %v", n, err)
			}
			if !tr.BackendAtBoundary() {
				t.Error("nothing of it was forwarded, so a last word must be possible")
			}
		})
	}
}

func TestTrackerKeepsReportedParameters(t *testing.T) {
	tr := pgwire.NewTracker('I')
	long := strings.Repeat("y", 20000)
	feed(t, &tr, '<', frame('S', "TimeZone\x00UTC\x00")+frame('S', "search_path\x00"+long+"\x00"), 7)
	got := tr.TakeReported()
	if len(got) != 2 || got[0] != (pgwire.Parameter{Name: "TimeZone", Value: "UTC"}) || got[1].Value != long {
		t.Errorf("got %d parameters", len(got))
	}
	if tr.TakeReported() != nil {
		t.Error("they are not forgotten once taken")
	}
}

func TestTrackerAllocatesNothingPerMessage(t *testing.T) {
	tr := pgwire.NewTracker('I')
	out, in := []byte(frames("PBDES")), []byte(frames("12tDCI"))
	if n := testing.AllocsPerRun(100, func() {
		tr.Frontend(out)
		tr.Backend(in)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkTracker(b *testing.B) {
	tr := pgwire.NewTracker('I')
	out, in := []byte(frames("PBDES")), []byte(frames("12tDDDDDDDDCI"))
	b.SetBytes(int64(len(out) + len(in)))
	b.ReportAllocs()
	for b.Loop() {
		tr.Frontend(out)
		tr.Backend(in)
	}
}

// However the bytes are cut, the tracker must come to the same state, forward
// no byte that it did not see, and never panic.
func FuzzTracker(f *testing.F) {
	f.Add([]byte(frames("PBDES")), []byte(frames("12tDCI")), 3)
	f.Add([]byte("X"), []byte("0\xc2000"), 66)
	f.Add([]byte(frames("Q")+"X\x00\x00\x00\x04"), []byte(frames("GEI")), 1)
	f.Fuzz(func(t *testing.T, front, back []byte, size int) {
		size &= 63
		if size == 0 {
			size = 1
		}
		whole, cut := pgwire.NewTracker('I'), pgwire.NewTracker('I')
		wn, wx, werr := whole.Frontend(front)
		cn, cx, cerr := 0, false, error(nil)
		for cn < len(front) && !cx && cerr == nil {
			n, x, err := cut.Frontend(front[cn:min(cn+size, len(front))])
			cn, cx, cerr = cn+n, x, err
		}
		if wx != cx || (werr == nil) != (cerr == nil) || wn > len(front) || cn < wn {
			t.Fatalf("whole: %d %v %v; cut: %d %v %v", wn, wx, werr, cn, cx, cerr)
		}
		if werr != nil {
			return
		}
		wb, werr := whole.Backend(back)
		cb, cerr := 0, error(nil)
		for cb < len(back) && cerr == nil {
			n, err := cut.Backend(back[cb:min(cb+size, len(back))])
			cb, cerr = cb+n, err
		}
		if (werr == nil) != (cerr == nil) || cb < wb {
			t.Fatalf("whole: %d %v; cut: %d %v", wb, werr, cb, cerr)
		}
		if werr != nil {
			return // what was forwarded of the bad message depends on the cut
		}
		if whole.Idle() != cut.Idle() || whole.Owed() != cut.Owed() || whole.Status() != cut.Status() {
			t.Fatal("the state depends on how the bytes were cut")
		}
	})
}
