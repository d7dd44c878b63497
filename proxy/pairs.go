package proxy

import (
	"os"

	"golang.org/x/sys/unix"
)

// pair is two connected ends, both close-on-exec. Both would block: most runtimes
// expect that of a descriptor that they inherit, and the loop asks for the
// opposite with each call.
type pair struct{ ours, theirs int }

// newPair makes a pair; the caller owns its descriptors.
func newPair() (pair, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return pair{}, os.NewSyscallError("socketpair", err)
	}
	return pair{ours: fds[0], theirs: fds[1]}, nil
}

// pairs is a stock of pairs, so that a function does not wait for one to be
// made. It belongs to the front loop.
type pairs struct{ stock []pair }

// pairStock is how many are kept. They are four descriptors of some 200 KB of
// kernel memory at most, and nothing while they are empty.
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
	for len(p.stock) < pairStock {
		made, err := newPair()
		if err != nil {
			return // take says so when there are none left
		}
		p.stock = append(p.stock, made)
	}
}

// close closes the stock.
func (p *pairs) close() {
	for _, made := range p.stock {
		unix.Close(made.ours)
		unix.Close(made.theirs)
	}
	p.stock = nil
}
