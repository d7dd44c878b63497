package pgxhandoff

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"

	"github.com/jackc/pgx/v5/pgproto3"

	"pghandoff/handoff"
)

// open finds out what the first message is and does what it takes.
func open(ctx context.Context, r handoff.Request, wire *net.UnixAddr, first []byte) (opened, error) {
	if binary.BigEndian.Uint32(first[4:]) == cancelCode {
		conn, err := new(net.Dialer).DialContext(ctx, wire.Net, wire.Name)
		if err != nil {
			return opened{}, fmt.Errorf("cancel by way of pghandoff: %w", err)
		}
		return opened{conn: conn, closer: conn, rest: first}, nil
	}
	var greeted []byte // of first, what is answered here
	if r.State == handoff.Ready {
		length := binary.BigEndian.Uint32(first)
		greeted, first = first[:length], first[length:]
		if err := readStartup(&r, greeted); err != nil {
			return opened{}, err
		}
	}
	lease, err := handoff.Acquire(ctx, r)
	var refusal *handoff.Refusal
	switch {
	case errors.As(err, &refusal):
		return refuse(refusal)
	case err != nil:
		return opened{}, err
	case lease.State != r.State && (lease.State == handoff.Ready || r.State == handoff.Ready):
		_ = lease.Close()
		return opened{}, fmt.Errorf("pghandoff granted a connection in state %s, not %s", lease.State, r.State)
	case greeted == nil:
		return opened{conn: lease.Conn(), closer: lease, rest: first}, nil
	}
	answers, err := greeting(lease)
	if err != nil {
		_ = lease.Close()
		return opened{}, err
	}
	return opened{conn: lease.Conn(), closer: lease, greeting: answers, rest: first}, nil
}

// readStartup takes user, database and parameters of pgx's start-up message over into the request.
func readStartup(r *handoff.Request, message []byte) error {
	var startup pgproto3.StartupMessage
	if err := startup.Decode(message[4:]); err != nil {
		return fmt.Errorf("a start-up message was expected (sslmode=disable?): %w", err)
	}
	r.Parameters = maps.Clone(r.Parameters)
	if r.Parameters == nil {
		r.Parameters = map[string]string{}
	}
	for name, value := range startup.Parameters {
		switch name {
		case "user":
			r.User = value
		case "database":
			r.Database = value
		case "application_name":
			r.ApplicationName = value
		default:
			r.Parameters[name] = value
		}
	}
	return nil
}

// greeting is what the server said when the connection was started up.
func greeting(lease *handoff.Lease) ([]byte, error) {
	key := binary.BigEndian.AppendUint32(nil, uint32(lease.Secret))
	messages := []pgproto3.BackendMessage{&pgproto3.AuthenticationOk{}}
	for _, name := range slices.Sorted(maps.Keys(lease.Parameters)) {
		messages = append(messages, &pgproto3.ParameterStatus{Name: name, Value: lease.Parameters[name]})
	}
	messages = append(messages, &pgproto3.BackendKeyData{ProcessID: lease.PID, SecretKey: key},
		&pgproto3.ReadyForQuery{TxStatus: lease.TxStatus})
	return encode(messages...)
}

// refuse is a connection that says no the way a server does.
func refuse(r *handoff.Refusal) (opened, error) {
	answer, err := encode(&pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: r.SQLState,
		Message: r.Message, Hint: r.Hint})
	if err != nil {
		return opened{}, err
	}
	conn := ended{}
	return opened{conn: conn, closer: conn, greeting: answer}, nil
}

func encode(messages ...pgproto3.BackendMessage) (out []byte, err error) {
	for _, m := range messages {
		if out, err = m.Encode(out); err != nil {
			return nil, fmt.Errorf("answer start-up: %w", err)
		}
	}
	return out, nil
}
