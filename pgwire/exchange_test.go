package pgwire_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pghandoff/pgwire"
)

func TestExchangeReadsToTheLastReadyForQuery(t *testing.T) {
	in := strings.NewReader(frame('C', "DISCARD ALL\x00") + frame('S', "a\x00b\x00") + frame('Z', "I") + frame('E', "SERROR\x00C42704\x00Mno\x00\x00") + frame('Z', "I") + "rest")
	out, err := pgwire.Exchange(&script{Reader: in}, pgwire.AppendQuery(nil, "DISCARD ALL"), 2)
	if err != nil || len(out.Reported) != 1 || out.Refused == nil || out.Refused.Code != "42704" || out.Status != 'I' || in.Len() != 4 {
		t.Fatalf("got %+v, %v, %d bytes left", out, err, in.Len())
	}
}

func TestExchangeEndsWhenTheServerDoes(t *testing.T) {
	for name, says := range map[string]string{
		"FATAL":         errorFrame("57P01", "terminating"),
		"end of stream": frame('C', "x\x00"),
		"COPY":          frame('G', "\x00\x00\x00"),
		"garbage":       "HTTP/1.1 200",
	} {
		if out, err := pgwire.Exchange(&script{Reader: strings.NewReader(says)}, nil, 1); err == nil {
			t.Errorf("%s: got %+v", name, out)
		}
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
}

// However the bytes are cut, a script comes to the same as an exchange that
// reads the whole, and leaves what is behind it.
func FuzzScript(f *testing.F) {
	f.Add([]byte(frame('C', "DISCARD ALL\x00")+frame('S', "a\x00b\x00")+frame('Z', "I")+"rest"), 3, 1)
	f.Add([]byte(errorFrame("57P01", "terminating")), 1, 2)
	f.Fuzz(func(t *testing.T, says []byte, size, n int) {
		size, n = 1+size&63, 1+n&3
		in := bytes.NewReader(says)
		want, wantErr := pgwire.Exchange(&script{Reader: in}, nil, n)
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
		if done != (wantErr == nil) {
			t.Fatalf("done %v, %v; whole: %v", done, err, wantErr)
		}
		if done && (fmt.Sprint(s.Outcome()) != fmt.Sprint(want) || len(rest)+len(says)-at != in.Len()) {
			t.Fatalf("%v with %d bytes left; whole: %v with %d", s.Outcome(), len(rest)+len(says)-at, want, in.Len())
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
