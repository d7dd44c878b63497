package proxy

import (
	"fmt"
	"strings"
	"testing"

	"pghandoff/pgwire"
)

func TestRememberedParametersAreMatchedWithWhatASessionHas(t *testing.T) {
	known := remembered{}
	known.add(pgwire.Parameter{Name: "datestyle", Value: "iso"}, "ISO, MDY")
	known.add(pgwire.Parameter{Name: "work_mem", Value: "1024"}, "1MB")
	known.add(pgwire.Parameter{Name: "TimeZone", Value: "utc"}, "UTC")
	has := newParameterSet([]pgwire.Parameter{{Name: "TimeZone", Value: "Asia/Tokyo"}, {Name: "DateStyle", Value: "ISO, MDY"}, {Name: "application_name", Value: ""}})
	for name, c := range map[string]struct {
		settings  []pgwire.Parameter
		due, told string
		known     bool
	}{
		"nothing":                          {nil, "[]", "[Asia/Tokyo ISO, MDY ]", true},
		"as it is shown":                   {[]pgwire.Parameter{{Name: "timezone", Value: "Asia/Tokyo"}}, "[]", "[Asia/Tokyo ISO, MDY ]", true},
		"the same in other words":          {[]pgwire.Parameter{{Name: "DateStyle", Value: "iso"}}, "[]", "[Asia/Tokyo ISO, MDY ]", true},
		"in words that are not known":      {[]pgwire.Parameter{{Name: "DateStyle", Value: "Iso"}}, "[{DateStyle Iso}]", "[Asia/Tokyo Iso ]", false},
		"known":                            {[]pgwire.Parameter{{Name: "TIMEZONE", Value: "utc"}}, "[{TIMEZONE utc}]", "[UTC ISO, MDY ]", true},
		"known and not reported":           {[]pgwire.Parameter{{Name: "work_mem", Value: "1024"}}, "[{work_mem 1024}]", "[Asia/Tokyo ISO, MDY ]", true},
		"a plain name":                     {[]pgwire.Parameter{{Name: "application_name", Value: "resize"}}, "[{application_name resize}]", "[Asia/Tokyo ISO, MDY resize]", true},
		"a name that is cleaned":           {[]pgwire.Parameter{{Name: "application_name", Value: "größe"}}, "[{application_name größe}]", "[Asia/Tokyo ISO, MDY größe]", false},
		"a name that is cut":               {[]pgwire.Parameter{{Name: "application_name", Value: strings.Repeat("x", 64)}}, "", "", false},
		"twice, the last as the session's": {[]pgwire.Parameter{{Name: "TimeZone", Value: "utc"}, {Name: "timezone", Value: "Asia/Tokyo"}}, "[{TimeZone utc} {timezone Asia/Tokyo}]", "[Asia/Tokyo ISO, MDY ]", false},
	} {
		due, told, ok := known.match(has, c.settings)
		var shown []string
		for _, p := range told.list {
			shown = append(shown, p.Value)
		}
		if ok != c.known || c.due != "" && (fmt.Sprint(due) != c.due || fmt.Sprint(shown) != c.told) {
			t.Errorf("%s: due %v, told %v, known %v", name, due, shown, ok)
		}
	}
	for i := range 3 * maxRemembered {
		known.add(pgwire.Parameter{Name: "a", Value: fmt.Sprint(i)}, "x")
	}
	if len(known) != maxRemembered {
		t.Errorf("%d are remembered", len(known))
	}
}

// The first function that names a value pays a round trip for it; for the next
// one it goes out with its first message, and a function that asks nothing costs
// the server nothing.
func TestParametersTravelWithTheFirstMessage(t *testing.T) {
	h := build(t, func(p *plan) { p.pool.Reset = "discard" })
	for round, want := range []string{
		"set TimeZone=europe/berlin; echo 0; DISCARD ALL",
		"set exit_on_error=on, TimeZone=europe/be; echo 1; DISCARD ALL",
		"",
	} {
		before := len(h.backend.heard())
		f := h.wire()
		f.send(start("TimeZone", "europe/berlin"))
		f.want("RS(server_version=15.1)S(TimeZone=Europe/Berlin)KZI")
		if round < 2 {
			f.send(query(fmt.Sprint("echo ", round)))
			f.want(fmt.Sprintf("D(%d)C(echo)ZI", round))
		}
		f.Close()
		h.unleased()
		h.warm("orders", 1)
		said := strings.TrimPrefix(h.backend.heard()[before:], "; ")
		if !strings.HasPrefix(said, want) || want == "" && said != "" {
			t.Errorf("round %d: the server heard %q, want %q", round, said, want)
		}
	}
	h.empty()
}

// A value that the server took once may be refused later. Then nothing is done
// of what the function asks.
func TestParameterThatIsRefusedLater(t *testing.T) {
	h := build(t, func(p *plan) { p.pool.Reset = "discard" })
	f := h.wire()
	f.send(start("TimeZone", "CET"))
	f.want("RS(server_version=15.1)S(TimeZone=CET)KZI")
	f.send(query("echo x"))
	f.want("D(x)C(echo)ZI")
	f.Close()
	h.unleased()
	h.warm("orders", 1)
	name := "TimeZone"
	h.backend.refuses.Store(&name)
	f = h.wire()
	f.send(start("TimeZone", "CET"))
	f.want("RS(server_version=15.1)S(TimeZone=CET)KZI")
	f.send(query("echo in vain"))
	f.want("E(22023)")
	f.Close()
	h.unleased()
	f = h.wire()
	f.send(start("TimeZone", "CET"))
	f.want("RE(22023)") // it is not remembered any more
	f.Close()
	h.empty()
	if strings.Contains(h.backend.heard(), "in vain") {
		t.Errorf("the server heard %q", h.backend.heard())
	}
}
