package tlsstate

import "fmt"

const (
	// MaxHeldIn bounds the ciphertext at rest, in bytes: what one batched read brings, and a record cut in two before it.
	MaxHeldIn = 64<<10 + MaxRecord
	// MaxHeldOut bounds the sealed bytes at rest, in bytes.
	MaxHeldOut = 256 << 10 // 256 KiB
)

// HoldIn keeps a copy of ciphertext that was read from the transport but not opened, usually the beginning of one record,
// in place of what was held before; nil lets go of it. So the connection is complete in the Conn while nobody reads.
// Errors: ErrTooMuchHeld above MaxHeldIn bytes, and then nothing changed; ErrDead.
func (c *Conn) HoldIn(b []byte) error { return c.hold(&c.in.held, b, MaxHeldIn) }

// HeldIn is what HoldIn was given. It belongs to the Conn: copy it in front of what is read next, then HoldIn(nil).
func (c *Conn) HeldIn() []byte { return c.in.held }

// HoldPlain keeps a copy of opened bytes that nobody took yet, at most MaxPlain of them; they come before those of HeldIn.
func (c *Conn) HoldPlain(b []byte) error { return c.hold(&c.in.plain, b, MaxPlain) }

// HeldPlain is what HoldPlain was given. It belongs to the Conn: take it, then HoldPlain(nil).
func (c *Conn) HeldPlain() []byte { return c.in.plain }

// HoldOut keeps a copy of sealed bytes that the kernel did not accept yet, in place of what was held before; nil lets go
// of them. They must be written before anything that is sealed later. Errors: ErrTooMuchHeld above MaxHeldOut bytes.
func (c *Conn) HoldOut(b []byte) error { return c.hold(&c.out.held, b, MaxHeldOut) }

// HeldOut is what HoldOut was given. It belongs to the Conn: write it, then HoldOut the rest, or nil.
func (c *Conn) HeldOut() []byte { return c.out.held }

func (c *Conn) hold(place *[]byte, b []byte, most int) error {
	if len(b) > most {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooMuchHeld, len(b), most)
	}
	if len(b) == 0 {
		*place = nil
		return nil
	}
	if err := c.dead(); err != nil {
		return err
	}
	*place = append((*place)[:0], b...) // b may be a part of what was held: append copes with that
	return nil
}
