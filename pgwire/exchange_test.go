package pgwire_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pghandoff/pgwire"
)

func TestScriptEndsWithTheLastReadyForQuery(t *testing.T) {
	says := frame('C', "DISCARD ALL\x00") + frame('S', "a\x00b\x00") + frame('Z', "I") + frame('E', "SERROR\x00C42704\x00Mno\x00\x00") + frame('Z', "I") + "rest"
	s := pgwire.NewScript(2)
	rest, done, err := s.Feed([]byte(says))
	out := s.Outcome()
	if err != nil || !done || string(rest) != "rest" || len(out.Reported) != 1 || len(out.Done) != 1 || out.Refused == nil || out.Refused.Code != "42704" || out.Status != 'I' {
		t.Fatalf("got %+v, %q, %v, %v", out, rest, done, err)
	}
}

func TestScriptRefusesWhatEndsTheSession(t *testing.T) {
	for name, says := range map[string]string{
		"FATAL":   errorFrame("57P01", "terminating"),
		"COPY":    frame('G', "\x00\x00\x00"),
		"garbage": "HTTP/1.1 200",
	} {
		if _, done, err := pgwire.NewScript(1).Feed([]byte(says)); done || err == nil {
			t.Errorf("%s: done %v, %v", name, done, err)
		}
	}
	if _, done, err := pgwire.NewScript(1).Feed([]byte(frame('C', "x\x00"))); done || err != nil {
		t.Errorf("a script that goes on: done %v, %v", done, err)
	}
}

// A server that sends a long message byte by byte must not make each of them
// cost as much as all before it.
func TestScriptCopiesALongMessageOnce(t *testing.T) {
	s, says := pgwire.NewScript(1), []byte(frame('N', strings.Repeat("x", 1<<19))+frame('Z', "I"))
	allocated := testing.AllocsPerRun(1, func() {
		s = pgwire.NewScript(1)
		for i := range says {
			if _, _, err := s.Feed(says[i : i+1]); err != nil {
				t.Fatal(err)
			}
		}
	})
	if s.Outcome().Status != 'I' || allocated > 1000 {
		t.Errorf("status %q, %v allocations for %d bytes", s.Outcome().Status, allocated, len(says))
	}
}

func TestParseOptions(t *testing.T) {
	for in, want := range map[string]string{
		"":                             "[]",
		"-c a=b":                       "[{a b}]",
		"  -ca=b   --search-path=x,y ": "[{a b} {search_path x,y}]",
		`-c a=one\ two -c b=\\`:        `[{a one two} {b \}]`,
		"-c a=b=c":                     "[{a b=c}]",
		"-c a=":                        "[{a }]",
	} {
		if got, err := pgwire.ParseOptions(in); err != nil || fmt.Sprint(got) != want {
			t.Errorf("%q: got %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"-c", "-c a", "-f x", "x", "-c =b", "--", "-"} {
		if got, err := pgwire.ParseOptions(in); !errors.Is(err, pgwire.ErrProtocol) {
			t.Errorf("%q: got %v, %v", in, got, err)
		}
	}
	for in, want := range map[string]string{"-c a": "-c a requires a value", "--a-b": "--a-b requires a value", "-ca -cb=c": "-c a requires a value"} {
		if _, err := pgwire.ParseOptions(in); !errors.Is(err, pgwire.ErrNoValue) || err.Error() != want {
			t.Errorf("%q: got %v", in, err)
		}
	}
}

// However the bytes are cut, a script comes to the same, and leaves what is
// behind it.
func FuzzScript(f *testing.F) {
	f.Add([]byte(frame('C', "DISCARD ALL\x00")+frame('S', "a\x00b\x00")+frame('Z', "I")+"rest"), 3, 1)
	f.Add([]byte(errorFrame("57P01", "terminating")), 1, 2)
	f.Fuzz(func(t *testing.T, says []byte, size, n int) {
		size, n = 1+size&63, 1+n&3
		whole := pgwire.NewScript(n)
		wantRest, wantDone, wantErr := whole.Feed(says)
		s := pgwire.NewScript(n)
		var rest []byte
		var done bool
		var err error
		at := 0
		for at < len(says) && !done && err == nil {
			end := min(at+size, len(says))
			rest, done, err = s.Feed(says[at:end])
			at = end
		}
		if done != wantDone || (err == nil) != (wantErr == nil) {
			t.Fatalf("done %v, %v; whole: %v, %v", done, err, wantDone, wantErr)
		}
		if done && (fmt.Sprint(s.Outcome()) != fmt.Sprint(whole.Outcome()) || len(rest)+len(says)-at != len(wantRest)) {
			t.Fatalf("%v with %d bytes left; whole: %v with %d", s.Outcome(), len(rest)+len(says)-at, whole.Outcome(), len(wantRest))
		}
	})
}

func TestUnasked(t *testing.T) {
	got, err := pgwire.Unasked([]byte(frame('N', "SNOTICE\x00\x00") + frame('S', "in_hot_standby\x00off\x00")))
	if err != nil || len(got) != 1 || got[0].Value != "off" {
		t.Errorf("got %v, %v", got, err)
	}
	for _, p := range []string{"N", frame('N', "x\x00")[:6], frame('A', "x"), frame('Z', "I"), frame('S', "a"), "N\xff\xff\xff\xff", "N\x00\x00\x00\x00"} {
		if got, err := pgwire.Unasked([]byte(p)); !errors.Is(err, pgwire.ErrProtocol) {
			t.Errorf("%q: %v, %v", p, got, err)
		}
	}
}
