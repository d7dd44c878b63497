package tests

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"pghandoff/tests/testpg"
)

const driversDoc = "../docs/drivers.md"

// driversMark stands in the page above what is made here.
const driversMark = "<!-- What follows is made by TestDrivers: PGHANDOFF_UPDATE=1 go test ./tests -run TestDrivers -->\n"

// findings are what the checks of all drivers said.
type findings struct {
	mu  sync.Mutex
	all map[string]outcome // by rowOf
}

func newFindings() *findings { return &findings{all: map[string]outcome{}} }

func (f *findings) add(d driver, way string, o outcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all[rowOf(d, way)] = o
}

// rowOf is how a row of each table begins.
func rowOf(d driver, way string) string { return fmt.Sprintf("| %s | %s |", d.name, way) }

// compare compares the page with what was found, or writes it.
func (f *findings) compare(t *testing.T) {
	t.Helper()
	if t.Failed() {
		return
	}
	data, err := os.ReadFile(driversDoc)
	if err != nil {
		t.Fatal(err)
	}
	prose, made, marked := strings.Cut(string(data), driversMark)
	if !marked {
		t.Fatalf("%s lacks the line %s", driversDoc, driversMark)
	}
	update := os.Getenv("PGHANDOFF_UPDATE") != ""
	if update {
		made = ""
	}
	page, unknown := f.page(t, made)
	switch {
	case update && len(unknown) > 0:
		t.Fatalf("cannot write %s: not run: %s", driversDoc, strings.Join(unknown, ", "))
	case update:
		if err := os.WriteFile(driversDoc, []byte(prose+driversMark+page), 0o644); err != nil {
			t.Fatal(err)
		}
	case page != made:
		t.Errorf("%s is not what was found: run PGHANDOFF_UPDATE=1 go test ./tests -run TestDrivers\nfound:\n%s", driversDoc, page)
	}
}

// page renders the tables. Rows of a driver that was not run, or not at the version of the page and this is not CI, are
// taken from the page; those that it lacks are unknown.
func (f *findings) page(t *testing.T, old string) (page string, unknown []string) {
	t.Helper()
	tables := []*table{
		{title: "## How to point a driver here", columns: []string{"driver", "by", "version", "a line of its checks"}},
		{title: "## What works", columns: append([]string{"driver", "by"}, checks...)},
		{title: "## What is missing, and remarks", columns: []string{"driver", "by", "check", ""}},
	}
	for _, d := range drivers {
		for _, way := range d.ways()[1:] {
			row := rowOf(d, way)
			o, ran := f.all[row]
			if version := versionIn(old, row); version != "" && ran && version != o.version && d.from == "Debian" {
				same := release(version) == release(o.version)
				ran = same || os.Getenv(testpg.RequireEnv) == "all"
				if same { // a point release
					o.version = version
				}
			}
			if !ran && !strings.Contains(old, row) {
				unknown = append(unknown, d.name+" by "+way)
			}
			fresh := [][]string{{fmt.Sprintf("%s %s (%s) | `%s` |", row, o.version, d.from, d.lines[way])}, {row + o.cells()}, o.remarks(row)}
			for i, rows := range fresh {
				if !ran {
					rows = rowsOf(old, tables[i].title, row)
				}
				tables[i].rows = append(tables[i].rows, rows...)
			}
		}
	}
	var b strings.Builder
	for _, table := range tables {
		table.write(&b)
	}
	return b.String(), unknown
}

type table struct {
	title   string
	columns []string
	rows    []string
}

func (t *table) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n%s\n\n| %s |\n|%s\n", t.title, strings.Join(t.columns, " | "), strings.Repeat("---|", len(t.columns)))
	for _, row := range t.rows {
		b.WriteString(row + "\n")
	}
}

// cells say of each check whether it went well.
func (o outcome) cells() string {
	var b strings.Builder
	for _, check := range checks {
		remarked, ok := isGood(o.said[check])
		switch {
		case ok && remarked != "":
			b.WriteString(" ok* |")
		case ok:
			b.WriteString(" ok |")
		default:
			b.WriteString(" none* |")
		}
	}
	return b.String()
}

// remarks are the reasons for each star.
func (o outcome) remarks(row string) (rows []string) {
	for _, check := range checks {
		said := o.said[check]
		if said != good {
			rows = append(rows, fmt.Sprintf("%s %s | %s |", row, check, said))
		}
	}
	return rows
}

// rowsOf finds the rows of the table below a title.
func rowsOf(page, title, row string) (rows []string) {
	_, rest, _ := strings.Cut(page, title+"\n")
	rest, _, _ = strings.Cut(rest, "\n## ")
	for line := range strings.Lines(rest) {
		if strings.HasPrefix(line, row) {
			rows = append(rows, strings.TrimSuffix(line, "\n"))
		}
	}
	return rows
}

// versionIn is the version in a row of the first table.
func versionIn(page, row string) string {
	_, rest, _ := strings.Cut(page, row+" ")
	version, _, _ := strings.Cut(rest, " ")
	return version
}

// release is a version without its last number, which changes with what Debian's stable releases mend.
func release(version string) string {
	if last := strings.LastIndexByte(version, '.'); last > 0 {
		return version[:last]
	}
	return version
}
