package utlshandshake

import (
	"net"

	tls "github.com/refraction-networking/utls"

	"pghandoff/tlsstate"
)

// keyPicker is the connection as utls sees it. utls keeps the private key of one classical key share beside the two of the
// hybrid one, and with X25519MLKEM768 it tries the former first, although it belongs to another group: so a hello that has
// shares for both fails at a server which takes the hybrid. keyPicker reads along until the ServerHello is there, before
// utls has seen the whole of it, and puts the hybrid's key in the place that is tried.
type keyPicker struct {
	net.Conn
	uc      *tls.UConn // nil once the choice is known
	opening []byte
}

// maxHello bounds what is kept of the server's first bytes.
const maxHello = 2 << 10 // 2 KiB

func (k *keyPicker) Read(p []byte) (int, error) {
	n, err := k.Conn.Read(p)
	if k.uc == nil || n == 0 {
		return n, err
	}
	k.opening = append(k.opening, p[:min(n, maxHello-len(k.opening))]...)
	group, whole := tlsstate.ServerGroup(k.opening)
	if keys := k.uc.HandshakeState.State13.KeyShareKeys; group == stdHybrid && keys != nil && keys.MlkemEcdhe != nil {
		keys.Ecdhe = keys.MlkemEcdhe
	}
	if whole || len(k.opening) == maxHello {
		k.uc, k.opening = nil, nil
	}
	return n, err
}
