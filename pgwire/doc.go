// Package pgwire speaks PostgreSQL's frontend/backend protocol, version 3
// (PostgreSQL documentation, chapter "Frontend/Backend Protocol"): frames and
// their bounds, the start-up phase as a server answers it, the login as a
// client performs it, and a [Tracker] that says from the frames seen so far
// what a session is doing.
//
// It refuses to open sockets, to start goroutines, to write logs and to decode
// rows: after the login, message bodies are counted, never parsed, except
// ReadyForQuery (one byte) and ParameterStatus. Messages of the login are
// decoded by github.com/jackc/pgproto3/v2 where that is safe on hostile input,
// and here where it is not: its DataRow.Decode panics on a negative length
// (GO-2026-4518) and its AuthenticationSASL.Decode never returns on a
// mechanism list without a terminator, so neither is called.
//
// Invariants:
//   - a length is checked before anything is allocated for it;
//   - no input, from either side, panics or makes a call that does not end;
//   - reading never goes past the frame that was asked for, so that bytes
//     behind it stay with the connection;
//   - passwords and SASL payloads appear in no error.
//
// A login over an established (and, where wanted, encrypted) connection:
//
//	s, err := pgwire.Login(conn, pgwire.LoginConfig{User: "app", Database: "orders", Password: pw, Encrypted: true})
package pgwire
