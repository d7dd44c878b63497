package pgwire

import (
	"encoding/binary"

	"github.com/jackc/pgproto3/v2"
)

// AppendQuery appends a simple Query message.
func AppendQuery(dst []byte, sql string) []byte {
	return mustEncode(dst, &pgproto3.Query{String: untilNUL(sql)})
}

// AppendTerminate appends Terminate, the polite end of a session.
func AppendTerminate(dst []byte) []byte { return append(dst, 'X', 0, 0, 0, 4) }

// Queries of ours about parameters. Names and values travel as bound arguments,
// so that nothing of them is SQL.
const (
	settingQuery = "SELECT pg_catalog.set_config($1, $2, $3)"
	// Only what the session has no value of its own for. A parameter that is
	// custom is not in pg_settings, and empty after a RESET.
	missingQuery = settingQuery + ` WHERE COALESCE((SELECT source <> 'session' FROM pg_catalog.pg_settings
		WHERE pg_catalog.lower(name) = pg_catalog.lower($1)), COALESCE(pg_catalog.current_setting($1, true), '') = '')`
	startOnlyQuery = `SELECT name FROM pg_catalog.pg_settings
		WHERE pg_catalog.lower(name) = pg_catalog.lower($1) AND context IN ('backend', 'superuser-backend')`
)

// AppendSettings appends one batch of the extended protocol that sets the
// parameters in order and ends with one Sync: all of them take effect or, at
// the first that the server refuses, none. Its rows are the values that the
// server has made of them.
func AppendSettings(dst []byte, parameters []Parameter) []byte {
	return appendBatch(dst, settingQuery, settingArguments(nil, parameters))
}

// AppendSettingsInFront appends such a batch for use outside a transaction and in
// front of other messages: if the server refuses one of the parameters it ends
// the session, so that nothing behind the batch is done without them. One more
// row comes before the others, and one more command.
func AppendSettingsInFront(dst []byte, parameters []Parameter) []byte {
	return appendBatch(dst, settingQuery, settingArguments([][]string{{"exit_on_error", "on", "true"}}, parameters))
}

// AppendMissing appends such a batch for those parameters that have lost the
// value which the session gave them, as by RESET. The others have no row.
func AppendMissing(dst []byte, parameters []Parameter) []byte {
	return appendBatch(dst, missingQuery, settingArguments(nil, parameters))
}

func settingArguments(all [][]string, parameters []Parameter) [][]string {
	for _, p := range parameters {
		all = append(all, []string{p.Name, p.Value, "false"})
	}
	return all
}

// AppendStartOnly appends a batch that asks which of the parameters can be set
// at the start of a session and not later. Its rows are their names.
func AppendStartOnly(dst []byte, parameters []Parameter) []byte {
	var all [][]string
	for _, p := range parameters {
		all = append(all, []string{p.Name})
	}
	return appendBatch(dst, startOnlyQuery, all)
}

// appendBatch appends one query, once for each set of arguments, and leaves no
// statement behind.
func appendBatch(dst []byte, sql string, arguments [][]string) []byte {
	dst = mustEncode(dst, &pgproto3.Parse{Query: sql})
	for _, set := range arguments {
		var bound [][]byte
		for _, a := range set {
			bound = append(bound, []byte(untilNUL(a)))
		}
		dst = mustEncode(dst, &pgproto3.Bind{Parameters: bound})
		dst = mustEncode(dst, &pgproto3.Execute{})
	}
	dst = mustEncode(dst, &pgproto3.Close{ObjectType: 'S'})
	return mustEncode(dst, &pgproto3.Sync{})
}

// Outcome is what a [Script] came to.
type Outcome struct {
	// Reported holds each ParameterStatus in the order of arrival.
	Reported []Parameter
	// Refused is the server's first error; nil if there was none.
	Refused *ServerError
	// Status is the transaction status of the last ReadyForQuery.
	Status byte
	// Done holds the tag of each command that was completed, in order. Compare
	// it with what was asked: an answer to somebody else's question would be
	// taken for ours otherwise.
	Done []string
	// Values holds the first column of each row, in order; NULL is empty.
	Values []string
}

// maxDone bounds the tags kept of one exchange, and the rows.
const maxDone = 1000

// maxExchangeLength bounds a message in an exchange of ours; a value that was
// set comes back in one. 1 MiB.
const maxExchangeLength = 1 << 20

// Script is the answer to a request of the daemon's own on a quiet session, fed
// with bytes as they come.
type Script struct {
	owed int
	out  Outcome
	part []byte // the beginning of a frame
}

// NewScript returns the script of a request that makes the server owe n
// ReadyForQuery, at least one; it ends with the last of them.
func NewScript(n int) *Script { return &Script{owed: n} }

// Outcome is what has come of it so far.
func (s *Script) Outcome() *Outcome { return &s.out }

// Feed takes bytes of the server. done says that the script has ended; then
// rest is what came behind it. An error means that the session cannot be used
// any more; a statement that the server refused is not an error but
// [Outcome.Refused].
func (s *Script) Feed(p []byte) (rest []byte, done bool, err error) {
	joined := len(s.part) > 0
	if joined {
		p = append(s.part, p...)
	}
	for len(p) >= headerLen {
		length := int64(binary.BigEndian.Uint32(p[1:]))
		if length < 4 || length > maxExchangeLength {
			return nil, false, protocolErrorf("message %q announces a length of %d bytes, at most %d are expected here", p[0], length, maxExchangeLength)
		}
		end := int(length) + 1
		if len(p) < end {
			break
		}
		done, err := s.take(p[0], p[headerLen:end])
		p = p[end:]
		if done || err != nil {
			return p, done, err
		}
	}
	if !joined { // what is joined is ours, and not copied again for each byte that comes
		p = append([]byte(nil), p...)
	}
	s.part = p
	return nil, false, nil
}

// take acts on one whole message of the server.
func (s *Script) take(typ byte, body []byte) (done bool, err error) {
	switch typ {
	case 'Z':
		if len(body) != 1 {
			return false, protocolErrorf("ReadyForQuery of %d bytes", len(body))
		}
		s.out.Status = body[0]
		s.owed--
		return s.owed == 0, nil
	case 'C':
		tag, _, ok := cutString(body)
		if !ok || len(s.out.Done) == maxDone {
			return false, protocolErrorf("malformed CommandComplete, or too many of them")
		}
		s.out.Done = append(s.out.Done, tag)
	case 'D':
		v, ok := firstColumn(body)
		if !ok || len(s.out.Values) == maxDone {
			return false, protocolErrorf("malformed DataRow, or too many of them")
		}
		s.out.Values = append(s.out.Values, v)
	case 'S':
		p, err := ParseParameterStatus(body)
		if err != nil {
			return false, err
		}
		if len(s.out.Reported) == maxParameters {
			return false, protocolErrorf("the server reports more than %d parameters", maxParameters)
		}
		s.out.Reported = append(s.out.Reported, p)
	case 'E':
		return false, s.refused(body)
	case 'G', 'H', 'W':
		return false, protocolErrorf("the server began a COPY that nobody asked for")
	}
	return false, nil
}

// firstColumn reads the first column of a DataRow: number of columns (16 bits),
// length of each (32 bits; -1 for NULL) and its bytes.
func firstColumn(body []byte) (string, bool) {
	if len(body) < 6 || binary.BigEndian.Uint16(body) == 0 {
		return "", false
	}
	n := int32(binary.BigEndian.Uint32(body[2:]))
	if n == -1 {
		return "", true
	}
	if n < 0 || int(n) > len(body)-6 {
		return "", false
	}
	return string(body[6 : 6+n]), true
}

func (s *Script) refused(body []byte) error {
	e, err := ParseError(body)
	switch {
	case err != nil:
		return err
	case e.Severity == "FATAL" || e.Severity == "PANIC":
		return e
	case s.out.Refused == nil:
		s.out.Refused = e
	}
	return nil
}

// Unasked reads what a server says to an idle session of its own accord and
// returns the parameters that it reports. Notices are dropped. Anything else
// is for somebody, and an error, as is half a message.
func Unasked(p []byte) ([]Parameter, error) {
	var reported []Parameter
	for len(p) > 0 {
		if len(p) < headerLen {
			return nil, protocolErrorf("half a message came unasked")
		}
		length := int64(binary.BigEndian.Uint32(p[1:]))
		if length < 4 || length > int64(len(p)-1) {
			return nil, protocolErrorf("half a message came unasked")
		}
		body := p[headerLen : length+1]
		switch p[0] {
		case 'N':
		case 'S':
			q, err := ParseParameterStatus(body)
			if err != nil {
				return nil, err
			}
			reported = append(reported, q)
		default:
			return nil, protocolErrorf("message %q came unasked", p[0])
		}
		p = p[length+1:]
	}
	return reported, nil
}
