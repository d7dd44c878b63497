package bench

import (
	"cmp"
	"fmt"
	"io"
	"slices"
)

// Options say what to measure. The zero value measures everything against
// every pooler that is installed, and prints nothing.
type Options struct {
	Out      io.Writer // gets the results
	Progress io.Writer // gets lines on what goes on
	Version  string    // of this program
	Against  []string  // poolers; nil: those that are installed
	JSON     bool
	Plot     string   // file for an SVG; "": none
	Quick    bool     // less of everything, for a test of the bench itself
	Rounds   int      // 0: three, or one if Quick
	Clients  []int    // of pgbench; nil: 1, 8 and 32, or 8 if Quick
	Modes    []string // of pgbench; nil: simple, extended and prepared
	Only     []string // groups; nil: all
}

// Modes are the ways in which pgbench can send its queries.
var Modes = []string{"simple", "extended", "prepared"}

// maxClients keeps all pools together below what the server takes.
const maxClients = 64

// Validate refuses what cannot be.
func (o Options) Validate() error {
	if o.Rounds < 0 {
		return fmt.Errorf("there cannot be %d rounds", o.Rounds)
	}
	for _, c := range o.Clients {
		if c < 1 || c > maxClients {
			return fmt.Errorf("the number of clients is from 1 to %d, not %d", maxClients, c)
		}
	}
	for _, list := range []struct {
		what         string
		given, known []string
	}{
		{"pooler", o.Against, Peers()}, {"mode", o.Modes, Modes}, {"group", o.Only, Groups()},
	} {
		for _, name := range list.given {
			if !slices.Contains(list.known, name) {
				return fmt.Errorf("there is no %s %q: name some of %v", list.what, name, list.known)
			}
		}
	}
	return nil
}

// withDefaults fills in what is not set.
func (o Options) withDefaults() Options {
	rounds, clients := 3, []int{1, 8, 32}
	if o.Quick {
		rounds, clients = 1, []int{8}
	}
	o.Rounds = cmp.Or(o.Rounds, rounds)
	if o.Out == nil {
		o.Out = io.Discard
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.Clients == nil {
		o.Clients = clients
	}
	if o.Modes == nil {
		o.Modes = Modes
	}
	return o
}
