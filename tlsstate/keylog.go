package tlsstate

import (
	"bytes"
	"crypto/tls"
	"encoding/hex"
	"fmt"
)

// keylog receives the lines that a TLS library writes in the NSS key log format, one a Write, and keeps the two secrets
// that the record layer needs, or the master secret of TLS 1.2:
//
//	CLIENT_TRAFFIC_SECRET_0 <client random in hex> <secret in hex>
//	CLIENT_RANDOM <client random in hex> <master secret in hex>
//
// It serves one connection only, so that secrets cannot mix, and it is not printed.
type keylog struct {
	client, server []byte
	random, master []byte // TLS 1.2: the client's random, the master secret
	gate           *gate
}

var (
	labelClient = []byte("CLIENT_TRAFFIC_SECRET_0")
	labelServer = []byte("SERVER_TRAFFIC_SECRET_0")
	labelMaster = []byte("CLIENT_RANDOM")
)

// Write takes one line. Lines with other labels are not looked at.
func (k *keylog) Write(line []byte) (int, error) {
	fields := bytes.Fields(line)
	if len(fields) != 3 {
		return len(line), nil
	}
	var err error
	switch {
	case bytes.Equal(fields[0], labelClient):
		err = keep(&k.client, fields[0], fields[2])
	case bytes.Equal(fields[0], labelServer):
		err = keep(&k.server, fields[0], fields[2])
		k.gate.mark()
	case bytes.Equal(fields[0], labelMaster):
		if err = keep(&k.random, fields[0], fields[1]); err == nil {
			err = keep(&k.master, fields[0], fields[2])
		}
	}
	if err != nil {
		return 0, err
	}
	return len(line), nil
}

func keep(place *[]byte, label, value []byte) error {
	if *place != nil {
		return fmt.Errorf("%w: %s was announced twice", ErrHandover, label)
	}
	secret := make([]byte, hex.DecodedLen(len(value)))
	if _, err := hex.Decode(secret, value); err != nil {
		return fmt.Errorf("%w: %s is malformed", ErrHandover, label)
	}
	*place = secret
	return nil
}

// forget overwrites the secrets. The library's own copies are beyond our reach.
func (k *keylog) forget() {
	clear(k.client)
	clear(k.server)
	clear(k.master)
	k.client, k.server, k.master = nil, nil, nil
}

// conn makes the connection of which info tells, in the role r, from the secrets. hello is the ServerHello.
func (k *keylog) conn(r role, info *Info, hello serverHello) (*Conn, error) {
	client, server := traffic{secret: k.client}, traffic{secret: k.server}
	if info.Version == tls.VersionTLS12 {
		s, err := suiteFor(info.Version, info.Suite)
		if err != nil {
			return nil, err
		}
		if hello.random == nil || hello.suite != info.Suite || len(k.random) != len(hello.random) || len(k.master) != masterLen {
			return nil, fmt.Errorf("%w: it announced no master secret, or the hello is another's", ErrHandover)
		}
		client, server = s.keyBlock(k.master, k.random, hello.random)
		defer client.forget()
		defer server.forget()
	}
	if r == roleServer {
		client, server = server, client
	}
	return newConn(r, info, server, client)
}
