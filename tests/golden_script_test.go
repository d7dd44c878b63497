package tests

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"pghandoff/pgwire"
)

// A golden trace is a script in testdata/golden:
//
//	== what the trace shows
//	# a remark
//	@ wire                         only this way, where the others are no different
//	> Query "select 1"             a message to send; those up to the next < go out together
//	>> Query "select 1"            the same, one byte at a time
//	> Cancel                       a cancel request, by a connection of its own, up to its end
//	< ReadyForQuery                read up to a message that reads like this, or begins so
//	< end                          read up to the end of the stream
//	! why                          why pghandoff is meant to differ, in the words of its reason
//	!- NegotiateProtocolVersion    the first such message of PostgreSQL is
//	!+ NegotiateProtocolVersion 3.2   replaced by this one, or by none
//	!= ErrorResponse …             or: all that pghandoff says, one line for each message
//
// Words with blanks or escapes are Go strings, "x"*3 repeats one and + joins two.
// null is NULL. The messages and what they take stand in frontend, below.
type trace struct {
	file, name string
	startup    bool   // it has a start-up of its own
	only       string // the way to which it is confined; empty: all that fit
	steps      []step
	differs    difference
}

// step is either bytes to send or a message to wait for.
type step struct {
	line   int
	send   []byte
	slowly bool
	cancel bool
	until  string
	// request holds the parameters of a start-up message for which a request on
	// the handoff socket can stand; nil: none can
	request map[string]string
}

// difference is what pghandoff is meant to do otherwise.
type difference struct {
	reason string
	edits  []edit
	whole  []string
}

type edit struct {
	from string // beginning of PostgreSQL's message
	to   []string
}

// endOfStream stands in a transcript for the end of the stream, and in a script
// for waiting for it.
const endOfStream = "end"

// readTraces reads all scripts, in the order of their names.
func readTraces(t *testing.T) (all []*trace) {
	t.Helper()
	files, err := filepath.Glob("testdata/golden/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	seen := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		group, err := parseTraces(strings.TrimSuffix(filepath.Base(file), ".txt"), string(text))
		if err != nil {
			t.Fatalf("%s:%v", file, err)
		}
		for _, tr := range group {
			if full := tr.file + "/" + tr.name; seen[full] {
				t.Fatalf("%s: there are two", full)
			} else {
				seen[full] = true
			}
		}
		all = append(all, group...)
	}
	return all
}

func parseTraces(file, text string) (all []*trace, err error) {
	for i, line := range strings.Split(text, "\n") {
		kind, rest, _ := strings.Cut(line, " ")
		rest = strings.TrimSpace(rest)
		if kind == "==" {
			all = append(all, &trace{file: file, name: rest})
			continue
		}
		if kind == "" || strings.HasPrefix(kind, "#") {
			continue
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("%d: a line before the first ==", i+1)
		}
		if err := all[len(all)-1].add(i+1, kind, rest); err != nil {
			return nil, fmt.Errorf("%d: %v", i+1, err)
		}
	}
	return all, nil
}

// add takes one line.
func (tr *trace) add(n int, kind, rest string) error {
	d := &tr.differs
	switch kind {
	case ">", ">>":
		words, err := splitWords(rest)
		if err != nil {
			return err
		}
		s := step{line: n, slowly: kind == ">>"}
		if s.send, err = frontend(words); err != nil {
			return err
		}
		switch words[0].text {
		case "Cancel":
			s.cancel = true
		case "Startup":
			s.request = requestFor(words[1:])
			tr.startup = true
		case "SSLRequest", "GSSENCRequest", "Packet":
			tr.startup = true
		}
		tr.steps = append(tr.steps, s)
	case "@":
		tr.only = rest
	case "<":
		tr.steps = append(tr.steps, step{line: n, until: rest})
	case "!":
		d.reason = strings.TrimSpace(d.reason + " " + rest)
	case "!-":
		d.edits = append(d.edits, edit{from: rest})
	case "!+":
		if len(d.edits) == 0 {
			return fmt.Errorf("!+ without !-")
		}
		e := &d.edits[len(d.edits)-1]
		e.to = append(e.to, rest)
	case "!=":
		d.whole = append(d.whole, rest)
	default:
		return fmt.Errorf("unknown line %q", kind)
	}
	if d.reason == "" && (len(d.edits) > 0 || len(d.whole) > 0) {
		return fmt.Errorf("a difference without a reason")
	}
	return nil
}

// word is one word of a script.
type word struct {
	text string
	null bool
}

// splitWords splits the rest of a line.
func splitWords(s string) (words []word, err error) {
	for s = strings.TrimLeft(s, " "); s != ""; s = strings.TrimLeft(s, " ") {
		var w word
		if s[0] != '"' {
			w.text, s, _ = strings.Cut(s, " ")
			if w.text == "null" {
				w = word{null: true}
			}
			words = append(words, w)
			continue
		}
		for {
			var part string
			if part, s, err = cutQuoted(s); err != nil {
				return nil, err
			}
			w.text += part
			if !strings.HasPrefix(s, `+"`) {
				break
			}
			s = s[1:]
		}
		if s != "" && s[0] != ' ' {
			return nil, fmt.Errorf("%q behind a string", s)
		}
		words = append(words, w)
	}
	if len(words) == 0 {
		return nil, fmt.Errorf("no message")
	}
	return words, nil
}

// cutQuoted takes a Go string, repeated if *n follows.
func cutQuoted(s string) (text, rest string, err error) {
	quoted, err := strconv.QuotedPrefix(s)
	if err != nil {
		return "", "", fmt.Errorf("%s: %v", s, err)
	}
	if text, err = strconv.Unquote(quoted); err != nil {
		return "", "", err
	}
	rest = s[len(quoted):]
	if !strings.HasPrefix(rest, "*") {
		return text, rest, nil
	}
	digits := len(rest[1:]) - len(strings.TrimLeft(rest[1:], "0123456789"))
	n, err := strconv.Atoi(rest[1 : 1+digits])
	return strings.Repeat(text, n), rest[1+digits:], err
}

// frontend builds the message that words name.
func frontend(words []word) ([]byte, error) {
	name, args := words[0].text, words[1:]
	arg := func(i int) string {
		if i < len(args) {
			return args[i].text
		}
		return ""
	}
	switch name {
	case "Query": // sql
		return message('Q', arg(0)+"\x00"), nil
	case "Parse": // statement sql oid…
		return parseMessage(args)
	case "Bind": // portal statement formats=… results=… value…
		return bindMessage(args)
	case "Describe", "Close": // S statement, P portal
		return message(name[0], arg(0)+arg(1)+"\x00"), nil
	case "Execute": // portal rows
		rows, _ := strconv.Atoi(arg(1))
		return message('E', arg(0)+"\x00"+int32of(rows)), nil
	case "Cancel": // nothing on this connection
		return nil, nil
	case "Flush":
		return message('H', ""), nil
	case "Sync":
		return message('S', ""), nil
	case "Terminate":
		return message('X', ""), nil
	case "FunctionCall": // oid value…
		oid, err := strconv.Atoi(arg(0))
		return message('F', int32of(oid)+int16of(0)+values(args[1:])+int16of(0)), err
	case "CopyData":
		return message('d', arg(0)), nil
	case "CopyDone":
		return message('c', ""), nil
	case "CopyFail":
		return message('f', arg(0)+"\x00"), nil
	case "Message": // type body
		return message(arg(0)[0], arg(1)), nil
	case "Raw":
		return []byte(arg(0)), nil
	case "Startup": // version name=value…
		return startupWords(args)
	case "Packet": // of the start-up, without its length
		return []byte(int32of(len(arg(0))+4) + arg(0)), nil
	case "SSLRequest":
		return []byte{0, 0, 0, 8, 4, 210, 22, 47}, nil
	case "GSSENCRequest":
		return []byte{0, 0, 0, 8, 4, 210, 22, 48}, nil
	}
	return nil, fmt.Errorf("unknown message %q", name)
}

func int16of(n int) string { return string(binary.BigEndian.AppendUint16(nil, uint16(n))) }
func int32of(n int) string { return string(binary.BigEndian.AppendUint32(nil, uint32(n))) }

// values writes a count and values, as Bind and FunctionCall have them.
func values(args []word) string {
	var b strings.Builder
	b.WriteString(int16of(len(args)))
	for _, a := range args {
		if a.null {
			b.WriteString(int32of(-1))
			continue
		}
		b.WriteString(int32of(len(a.text)) + a.text)
	}
	return b.String()
}

// list writes a count and 16-bit numbers parted by commas.
func list(s string) (string, error) {
	if s == "" {
		return int16of(0), nil
	}
	parts := strings.Split(s, ",")
	out := int16of(len(parts))
	for _, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil {
			return "", err
		}
		out += int16of(n)
	}
	return out, nil
}

func parseMessage(args []word) ([]byte, error) {
	if len(args) < 2 {
		return nil, fmt.Errorf("Parse takes a name and SQL")
	}
	body := args[0].text + "\x00" + args[1].text + "\x00" + int16of(len(args)-2)
	for _, a := range args[2:] {
		oid, err := strconv.Atoi(a.text)
		if err != nil {
			return nil, err
		}
		body += int32of(oid)
	}
	return message('P', body), nil
}

func bindMessage(args []word) ([]byte, error) {
	if len(args) < 2 {
		return nil, fmt.Errorf("Bind takes a portal and a statement")
	}
	var formats, results string
	bound := args[2:]
	for len(bound) > 0 {
		if s, ok := strings.CutPrefix(bound[0].text, "formats="); ok {
			formats, bound = s, bound[1:]
		} else if s, ok := strings.CutPrefix(bound[0].text, "results="); ok {
			results, bound = s, bound[1:]
		} else {
			break
		}
	}
	in, err := list(formats)
	if err != nil {
		return nil, err
	}
	out, err := list(results)
	return message('B', args[0].text+"\x00"+args[1].text+"\x00"+in+values(bound)+out), err
}

func startupWords(args []word) ([]byte, error) {
	if len(args) == 0 {
		return nil, fmt.Errorf("Startup takes a version")
	}
	major, minor, _ := strings.Cut(args[0].text, ".")
	a, err := strconv.Atoi(major)
	if err != nil {
		return nil, err
	}
	b, err := strconv.Atoi(minor)
	var pairs []string
	for _, w := range args[1:] {
		name, value, _ := strings.Cut(w.text, "=")
		pairs = append(pairs, name, value)
	}
	return startupMessage(uint32(a)<<16|uint32(b), pairs...), err
}

// requestFor is what a request on the handoff socket asks for in place of a
// start-up message; nil if none can: such a request names the user and the route
// and each parameter once, and no protocol.
func requestFor(words []word) map[string]string {
	out := map[string]string{}
	for _, w := range words[1:] {
		name, value, _ := strings.Cut(w.text, "=")
		if _, twice := out[name]; twice || strings.HasPrefix(name, "_pq_.") {
			return nil
		}
		out[name] = value
	}
	if words[0].text != "3.0" || out["user"] != "app" || out["database"] != "orders" {
		return nil
	}
	delete(out, "user")
	delete(out, "database")
	return out
}

// plainStart is the start-up of traces that have none.
func plainStart() *trace {
	return &trace{steps: []step{{send: startupMessage(pgwire.Version30, "user", "app", "database", "orders")}, {until: "ReadyForQuery"}}}
}
