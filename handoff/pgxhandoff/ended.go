package pgxhandoff

import (
	"io"
	"net"
	"time"
)

// ended is a connection whose other side has closed.
type ended struct{}

func (ended) Read([]byte) (int, error)         { return 0, io.EOF }
func (ended) Write(p []byte) (int, error)      { return len(p), nil }
func (ended) Close() error                     { return nil }
func (ended) LocalAddr() net.Addr              { return &net.UnixAddr{Net: "unix"} }
func (ended) RemoteAddr() net.Addr             { return &net.UnixAddr{Net: "unix"} }
func (ended) SetDeadline(time.Time) error      { return nil }
func (ended) SetReadDeadline(time.Time) error  { return nil }
func (ended) SetWriteDeadline(time.Time) error { return nil }
