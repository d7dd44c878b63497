package proxy

import (
	"os"

	"golang.org/x/sys/unix"

	"pghandoff/handoff"
	"pghandoff/proxy/loop"
)

// pair is two connected ends, both close-on-exec. Both would block: most runtimes
// expect that of a descriptor that they inherit, and the loop asks for the
// opposite with each call.
type pair struct {
	ours, theirs int
	token        loop.Token // of ours, if it is in the front loop already
}

// newPair makes a pair; the caller owns its descriptors.
func newPair() (pair, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return pair{}, os.NewSyscallError("socketpair", err)
	}
	handoff.RefuseDescriptors(fds[0])
	return pair{ours: fds[0], theirs: fds[1]}, nil
}

// pairs is a stock of pairs, so that a function does not wait for one to be
// made. It belongs to the front loop.
type pairs struct {
	loop  *loop.Loop // nil: none is kept
	stock []pair
}

// stocked is told about pairs that nobody has: nothing can happen to them.
type stocked struct{}

func (stocked) Ready(loop.Events) {}

// pairStock is how many are kept: sixteen descriptors, and no buffers while
// nobody has sent anything.
const pairStock = 8

// take returns a pair, which the caller owns.
func (p *pairs) take() (pair, error) {
	if n := len(p.stock); n > 0 {
		last := p.stock[n-1]
		p.stock = p.stock[:n-1]
		return last, nil
	}
	return newPair()
}

// refill makes what is missing, if there are descriptors for it.
func (p *pairs) refill() {
	for p.loop != nil && len(p.stock) < pairStock {
		made, err := newPair()
		if err != nil {
			return // take says so when there are none left
		}
		if made.token, err = p.loop.Add(made.ours, stocked{}, loop.Readable); err != nil {
			p.discard(made)
			return
		}
		p.stock = append(p.stock, made)
	}
}

// close closes the stock.
func (p *pairs) close() {
	for _, made := range p.stock {
		p.discard(made)
	}
	p.stock, p.loop = nil, nil
}

// discard closes both ends.
func (p *pairs) discard(made pair) {
	p.loop.Close(made.token, made.ours)
	unix.Close(made.theirs)
}
