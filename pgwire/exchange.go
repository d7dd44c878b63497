package pgwire

import (
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgproto3/v2"
)

// AppendQuery appends a simple Query message.
func AppendQuery(dst []byte, sql string) []byte {
	return mustEncode(dst, &pgproto3.Query{String: untilNUL(sql)})
}

// AppendTerminate appends Terminate, the polite end of a session.
func AppendTerminate(dst []byte) []byte { return append(dst, 'X', 0, 0, 0, 4) }

// settingQuery sets one parameter for the session. Name and value travel as
// bound arguments, so that nothing of them is SQL.
const settingQuery = "SELECT pg_catalog.set_config($1, $2, false)"

// AppendSettings appends one batch of the extended protocol that sets the
// parameters in order and ends with one Sync: all of them take effect or, at
// the first that the server refuses, none.
func AppendSettings(dst []byte, parameters []Parameter) []byte {
	dst = mustEncode(dst, &pgproto3.Parse{Query: settingQuery})
	for _, p := range parameters {
		dst = mustEncode(dst, &pgproto3.Bind{Parameters: [][]byte{[]byte(untilNUL(p.Name)), []byte(untilNUL(p.Value))}})
		dst = mustEncode(dst, &pgproto3.Execute{})
	}
	return mustEncode(dst, &pgproto3.Sync{})
}

// Outcome is what an [Exchange] came to.
type Outcome struct {
	// Reported holds each ParameterStatus in the order of arrival.
	Reported []Parameter
	// Refused is the server's first error; nil if there was none.
	Refused *ServerError
	// Status is the transaction status of the last ReadyForQuery.
	Status byte
}

// maxExchangeLength bounds a message in an exchange of ours; a value that was
// set comes back in one. 1 MiB.
const maxExchangeLength = 1 << 20

// Exchange sends request, which makes the server owe n ReadyForQuery, and reads
// until the last of them. It is for short scripts of the daemon's own on a
// quiet session, bounded in time by deadlines on rw. An error means that the
// session cannot be used any more; a statement that the server refused is not
// an error but [Outcome.Refused].
func Exchange(rw io.ReadWriter, request []byte, n int) (*Outcome, error) {
	if _, err := rw.Write(request); err != nil {
		return nil, fmt.Errorf("send to server: %w", err)
	}
	frames, out := NewFrameReader(rw, maxExchangeLength), new(Outcome)
	for n > 0 {
		typ, body, err := frames.Next()
		if err != nil {
			return nil, fmt.Errorf("read from server: %w", err)
		}
		switch typ {
		case 'Z':
			if len(body) != 1 {
				return nil, protocolErrorf("ReadyForQuery of %d bytes", len(body))
			}
			out.Status = body[0]
			n--
		case 'S':
			p, err := ParseParameterStatus(body)
			if err != nil {
				return nil, err
			}
			if len(out.Reported) == maxParameters {
				return nil, protocolErrorf("the server reports more than %d parameters", maxParameters)
			}
			out.Reported = append(out.Reported, p)
		case 'E':
			e, err := ParseError(body)
			if err != nil {
				return nil, err
			}
			if e.Severity == "FATAL" || e.Severity == "PANIC" {
				return nil, e
			}
			if out.Refused == nil {
				out.Refused = e
			}
		case 'G', 'H', 'W':
			return nil, errors.New("the server began a COPY that nobody asked for")
		}
	}
	return out, nil
}
