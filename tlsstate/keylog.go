package tlsstate

import (
	"bytes"
	"encoding/hex"
	"fmt"
)

// keylog receives the lines that a TLS library writes in the NSS key log format, one a Write, and keeps the two secrets
// that the record layer needs:
//
//	CLIENT_TRAFFIC_SECRET_0 <client random in hex> <secret in hex>
//
// It serves one connection only, so that secrets cannot mix, and it is not printed.
type keylog struct {
	client, server []byte
	gate           *gate
}

var (
	labelClient = []byte("CLIENT_TRAFFIC_SECRET_0")
	labelServer = []byte("SERVER_TRAFFIC_SECRET_0")
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
		err = keep(&k.client, fields)
	case bytes.Equal(fields[0], labelServer):
		err = keep(&k.server, fields)
		k.gate.mark()
	}
	if err != nil {
		return 0, err
	}
	return len(line), nil
}

func keep(place *[]byte, fields [][]byte) error {
	if *place != nil {
		return fmt.Errorf("%w: %s was announced twice", ErrHandover, fields[0])
	}
	secret := make([]byte, hex.DecodedLen(len(fields[2])))
	if _, err := hex.Decode(secret, fields[2]); err != nil {
		return fmt.Errorf("%w: %s is malformed", ErrHandover, fields[0])
	}
	*place = secret
	return nil
}

// forget overwrites the secrets. The library's own copies are beyond our reach.
func (k *keylog) forget() {
	clear(k.client)
	clear(k.server)
	k.client, k.server = nil, nil
}
