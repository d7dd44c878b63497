package tests

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// said is one thing that came from the server's side: a message, a single byte
// (typ 0) that answers a request for encryption, or the end of the stream.
type said struct {
	typ  byte
	body []byte
	end  bool
}

// rendering turns what was said into text, one line for each message. What
// differs between two runs is masked: pids, cancel keys, OIDs of what was made,
// the names of schemas of temporary tables.
type rendering struct {
	pid     uint32 // the backend's own
	key     []byte // with which it is cancelled
	started bool   // ReadyForQuery has been seen
	columns []string
}

func (r *rendering) line(s said) string {
	switch {
	case s.end:
		return endOfStream
	case s.typ == 0:
		return fmt.Sprintf("byte %s", s.body)
	}
	b := &fields{rest: s.body}
	text := r.message(s.typ, b)
	if b.short || len(b.rest) > 0 {
		text += fmt.Sprintf(" malformed %q", s.body)
	}
	return temporary.ReplaceAllString(text, "pg_temp_N")
}

// temporary is the schema of a session's temporary tables, numbered at random.
var temporary = regexp.MustCompile(`pg_temp_\d+`)

// plain are messages without a body.
var plain = map[byte]string{'1': "ParseComplete", '2': "BindComplete", '3': "CloseComplete", 'n': "NoData", 's': "PortalSuspended",
	'I': "EmptyQueryResponse", 'c': "CopyDone"}

func (r *rendering) message(typ byte, b *fields) string {
	if name, ok := plain[typ]; ok {
		return name
	}
	switch typ {
	case 'R':
		return fmt.Sprintf("Authentication %d", b.int32())
	case 'S':
		return fmt.Sprintf("ParameterStatus %s %q", b.text(), b.text())
	case 'K':
		r.pid = b.int32()
		r.key = []byte(b.take(len(b.rest)))
		return "BackendKeyData"
	case 'Z':
		r.started = true
		return "ReadyForQuery " + b.take(1)
	case 'E':
		return "ErrorResponse" + r.report(b)
	case 'N':
		return "NoticeResponse" + r.report(b)
	case 'C':
		return fmt.Sprintf("CommandComplete %q", b.text())
	case 'D':
		return "DataRow" + r.row(b)
	case 'T':
		return "RowDescription" + r.description(b)
	case 't':
		return "ParameterDescription" + b.numbers(b.int16(), b.int32)
	case 'V':
		return "FunctionCallResponse" + value(b)
	case 'G', 'H', 'W':
		name := map[byte]string{'G': "CopyInResponse", 'H': "CopyOutResponse", 'W': "CopyBothResponse"}[typ]
		return fmt.Sprintf("%s %s", name, b.take(1)) + b.numbers(b.int16(), func() uint32 { return uint32(b.int16()) })
	case 'd':
		return "CopyData " + brief(b.take(len(b.rest)))
	case 'A':
		return fmt.Sprintf("NotificationResponse%s %q %q", r.mask(fmt.Sprintf(" %d", b.int32())), b.text(), b.text())
	case 'v':
		version, n := b.int32(), b.int32()
		text := fmt.Sprintf("NegotiateProtocolVersion %d.%d", version>>16, version&0xffff)
		for ; n > 0 && !b.short; n-- {
			text += " " + b.text()
		}
		return text
	}
	return fmt.Sprintf("message %q", typ)
}

// report renders an error or a notice with all fields. A start-up that fails is
// told with severity, code, message, detail and hint: where in the server's
// source it was raised is not of the contract.
func (r *rendering) report(b *fields) string {
	var head, rest, code string
	for !b.short {
		field := b.take(1)
		if field == "\x00" {
			break
		}
		value := b.text()
		if field == "C" {
			code = value
		}
		switch {
		case field == "W" && code == "57014": // where it was just then
		case field == "S" || field == "C":
			head += " " + value
		case r.started || strings.Contains("MDH", field):
			rest += fmt.Sprintf(" %s=%q", field, value)
		}
	}
	return head + rest
}

func (r *rendering) description(b *fields) (text string) {
	r.columns = nil
	for n := b.int16(); n > 0 && !b.short; n-- {
		name, table, column := b.text(), b.int32(), b.int16()
		r.columns = append(r.columns, name)
		from := fmt.Sprint(table)
		if table >= 16384 { // FirstNormalObjectId
			from = "made"
		}
		text += fmt.Sprintf(" %q(table %s %d, type %d %d %d, format %d)", name, from, column, b.int32(), int16(b.int16()), int32(b.int32()), b.int16())
	}
	return text
}

func (r *rendering) row(b *fields) string {
	var text strings.Builder
	n := int(b.int16())
	for i := 0; i < n && !b.short; i++ {
		v := value(b)
		if i < len(r.columns) && strings.Contains(r.columns[i], "pid") { // other numbers may be the same by chance
			v = r.mask(v)
		}
		text.WriteString(v)
	}
	return text.String()
}

func value(b *fields) string {
	n := int32(b.int32())
	if n == -1 {
		return " null"
	}
	return " " + brief(b.take(int(n)))
}

func (r *rendering) mask(s string) string {
	if r.pid != 0 && strings.Trim(s, ` "`) == fmt.Sprint(r.pid) {
		return " <own pid>"
	}
	return s
}

// brief shows long values by length and digest.
func brief(s string) string {
	if len(s) <= 200 {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q… %d bytes %x", s[:20], len(s), sha256.Sum256([]byte(s)))
}

// fields reads the body of a message; short says that it was not long enough.
type fields struct {
	rest  []byte
	short bool
}

func (b *fields) take(n int) string {
	if n < 0 || n > len(b.rest) {
		b.short, b.rest = true, nil
		return ""
	}
	s := string(b.rest[:n])
	b.rest = b.rest[n:]
	return s
}

func (b *fields) text() string {
	n := slices.Index(b.rest, 0)
	s := b.take(n)
	b.take(1)
	return s
}

func (b *fields) int16() uint16 {
	if s := b.take(2); s != "" {
		return binary.BigEndian.Uint16([]byte(s))
	}
	return 0
}

func (b *fields) int32() uint32 {
	if s := b.take(4); s != "" {
		return binary.BigEndian.Uint32([]byte(s))
	}
	return 0
}

func (b *fields) numbers(n uint16, next func() uint32) (text string) {
	for ; n > 0 && !b.short; n-- {
		text += fmt.Sprintf(" %d", next())
	}
	return text
}
