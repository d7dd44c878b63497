package tlsstate_test

import (
	"bytes"
	"io"
	"testing"

	"pghandoff/tlsstate"
)

// Any bytes as records: no panic, nothing held, never data. And what one Conn seals, in any pieces, the other opens to the
// same bytes.
func FuzzOpen(f *testing.F) {
	f.Add([]byte{23, 3, 3, 0, 17, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}, uint16(3), uint8(0))
	f.Add([]byte{21, 3, 3, 0, 2, 2, 40}, uint16(0), uint8(1))
	f.Add([]byte{23, 3, 3, 0xff, 0xff}, uint16(1), uint8(2))
	f.Add(bytes.Repeat([]byte("row "), 5000), uint16(16384), uint8(2))
	f.Fuzz(func(t *testing.T, data []byte, cut uint16, which uint8) {
		suite := recordSuites[int(which)%len(recordSuites)]
		client, _ := pair(t, suite)
		plain, n, err := client.Open(bytes.Clone(data))
		if len(plain) > 0 || n > len(data) || err == nil && n > 0 || err == io.EOF {
			t.Fatalf("opened %d bytes of nonsense to %d: %v", n, len(plain), err)
		}

		client, server := pair(t, suite)
		at := min(int(cut), len(data))
		wire, _ := client.Seal(nil, data[:at])
		if which&64 != 0 { // refused with TLS 1.2, and then nothing is appended
			wire, _ = client.RequestKeyUpdate(wire, which&128 != 0)
		}
		wire, err = client.Seal(wire, data[at:])
		if err != nil {
			t.Fatal(err)
		}
		if got, err := openAll(server, wire); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%d bytes became %d: %v", len(data), len(got), err)
		}
	})
}

// Any bytes as handshake messages, in any pieces: no panic, and no more is held than one message may have.
func FuzzHandshakeMessages(f *testing.F) {
	f.Add(append(message(4, ticket(10)), keyUpdate...), uint16(7))
	f.Add(keyUpdateRequest, uint16(5))
	f.Add(message(13, []byte{0, 0, 0}), uint16(2))
	f.Add([]byte{4, 0, 255, 255, 1, 2, 3}, uint16(1))
	f.Fuzz(func(t *testing.T, data []byte, piece uint16) {
		client, server := pair(t, suiteIDs[0])
		size := min(int(piece)+1, tlsstate.MaxPlain)
		for len(data) > 0 {
			n := min(len(data), size)
			plain, err := openAll(client, server.SealRaw(nil, 22, data[:n]))
			if len(plain) > 0 || client.Frag() > 64<<10 {
				t.Fatalf("%d bytes of data, %d held", len(plain), client.Frag())
			}
			if err != nil {
				if client.Owes() {
					t.Fatal("a dead connection owes")
				}
				return
			}
			if in, _ := client.Seq(); in == 0 { // the key was changed: the next record would need the next one
				return
			}
			data = data[n:]
		}
	})
}

// Any bytes as a server's first ones: no panic.
func FuzzServerAnswer(f *testing.F) {
	f.Add(serverHello12())
	f.Add([]byte("E\x00\x00\x00\x40SFATAL"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if tlsstate.NotTLS(data) && tlsstate.HelloVersion(data) != 0 && data[1] == 3 {
			t.Fatal("a ServerHello that is not TLS")
		}
	})
}

// serverHello12 is how a server of TLS 1.2 begins.
func serverHello12() []byte {
	body := append([]byte{3, 3}, make([]byte, 32)...)
	body = append(body, 0, 0xc0, 0x2f, 0)
	hello := message(2, body)
	return append([]byte{22, 3, 3, 0, byte(len(hello))}, hello...)
}
