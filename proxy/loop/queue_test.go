package loop

import "testing"

func TestLaterAllocatesNothing(t *testing.T) {
	var l Loop
	count := 0
	f := func() { count++ }
	if n := testing.AllocsPerRun(100, func() {
		l.Later(f)
		l.Later(f)
		l.runLater(0)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if want := 2 * 101; count != want {
		t.Errorf("%d of %d functions were called", count, want)
	}
}
