package tlsstate

import (
	"errors"
	"fmt"
	"io"
	"net"
)

// sslRequest is the message of that name (PostgreSQL protocol, "Message Formats"): uint32 length 8 | uint32 80877103.
var sslRequest = [8]byte{0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f}

// negotiate asks for TLS and reads exactly the one byte of the answer. Whatever somebody put behind an S stays in the
// kernel and meets the TLS handshake, which it fails.
func negotiate(nc net.Conn) error {
	if _, err := nc.Write(sslRequest[:]); err != nil {
		return fmt.Errorf("ask the server for TLS: %w", err)
	}
	var answer [1]byte
	if _, err := io.ReadFull(nc, answer[:]); err != nil {
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("server closed the connection before it answered: %w", io.ErrUnexpectedEOF)
		}
		return fmt.Errorf("ask the server for TLS: %w", err)
	}
	switch answer[0] {
	case 'S':
		return nil
	case 'N':
		return ErrNotOffered
	case 'E':
		return ErrRefused
	}
	return fmt.Errorf("%w (it answered with byte 0x%02x)", ErrNotPostgres, answer[0])
}
