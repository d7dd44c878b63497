package proxy

import (
	"net/netip"
	"testing"
)

// One address cannot take all the places of those that log in, nor all addresses
// together more than there are.
func TestGuestsAreBoundedInAllAndByAddress(t *testing.T) {
	l := &listener{guests: map[holder]int{}}
	from := func(n byte) holder { return holder{address: netip.AddrFrom4([4]byte{192, 0, 2, n})} }
	admitted := 0
	for n := range byte(10) {
		of := 0
		for l.admit(from(n)) {
			of++
		}
		if of > maxGuestsFrom {
			t.Errorf("%d from one address", of)
		}
		admitted += of
	}
	if admitted != maxGuests {
		t.Errorf("%d admitted", admitted)
	}
	for range maxGuestsFrom {
		l.dismiss(from(0))
	}
	if !l.admit(from(9)) || len(l.guests) > maxGuests/maxGuestsFrom {
		t.Errorf("places that are free again are not given: %v", l.guests)
	}
}
