package pgwire_test

import (
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
