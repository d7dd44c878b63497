package tests

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// module is the module's path, with which every import of our own begins.
const module = "pghandoff"

// allowedImports is the table of ARCHITECTURE.md: for each package the packages of ours that it may import. A test file
// may import the same, the package that it tests and the test helpers.
var allowedImports = map[string][]string{
	"pgwire":       nil,
	"tlsstate":     nil,
	"certs":        nil,
	"handoff":      nil,
	"proxy/config": nil,
	"proxy/audit":  nil,
	"proxy/admin":  nil,
	"proxy/loop":   nil,

	"tlsstate/utlshandshake": {"tlsstate"},
	"tlsstate/ktls":          nil,

	"handoff/pgxhandoff":  {"handoff"},
	"handoff/handofftest": {"handoff"},
	"proxy":               {"pgwire", "tlsstate", "tlsstate/utlshandshake", "tlsstate/ktls", "certs", "handoff", "proxy/config", "proxy/audit", "proxy/admin", "proxy/loop"},

	"cmd/pghandoff":           {"proxy", "proxy/config", "proxy/audit", "proxy/admin", "handoff", "cmd/pghandoff/demo", "cmd/pghandoff/bench"},
	"cmd/pghandoff/throwaway": {"certs"},
	"cmd/pghandoff/child":     {"cmd/pghandoff/throwaway", "proxy", "proxy/admin"},
	"cmd/pghandoff/demo":      {"cmd/pghandoff/child", "cmd/pghandoff/throwaway", "proxy/audit", "handoff", "handoff/pgxhandoff"},
	"cmd/pghandoff/bench":     {"cmd/pghandoff/child", "cmd/pghandoff/throwaway", "handoff", "certs"},

	"tests/testpg": {"cmd/pghandoff/throwaway", "certs", "tests/testca"},
	"tests/testca": {"certs"},
	"tests":        {anything},
}

// anything in the table is every package of ours.
const anything = "*"

// isTestHelper tells the packages that every test file may import.
func isTestHelper(pkg string) bool {
	return strings.HasPrefix(pkg, "tests/") || pkg == "cmd/pghandoff/throwaway" || pkg == "handoff/handofftest"
}

// passive packages are given bytes or a connection: they open none, start no goroutine and write no log.
var passive = []string{"pgwire", "tlsstate", "tlsstate/utlshandshake"}

const maxLines = 600 // of a Go file

// source is one Go file of the module.
type source struct {
	name    string // path from the module's root
	pkg     string // folder from the module's root
	test    bool
	lines   int
	set     *token.FileSet
	file    *ast.File
	imports map[string]string // path of each import → the name that it goes by in the file
}

// Proves that the packages import each other as the table says and in no other way.
func TestImportsBetweenPackages(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range sources(t) {
		seen[s.pkg] = true
		allowed, listed := allowedImports[s.pkg]
		if !listed {
			t.Errorf("%s: package %s is not in the table of imports: add it here and in ARCHITECTURE.md", s.name, s.pkg)
			continue
		}
		for imported := range s.imports {
			ours, ok := ownPackage(imported)
			switch {
			case !ok, slices.Contains(allowed, ours), slices.Contains(allowed, anything):
			case s.test && (ours == s.pkg || isTestHelper(ours)):
			default:
				t.Errorf("%s: %s may not import %s", s.name, s.pkg, ours)
			}
		}
	}
	for pkg := range allowedImports {
		if !seen[pkg] {
			t.Errorf("the table of imports names package %s, which does not exist", pkg)
		}
	}
}

// Proves that no file has grown past the ceiling.
func TestFilesAreShort(t *testing.T) {
	for _, s := range sources(t) {
		if s.lines > maxLines {
			t.Errorf("%s has %d lines, at most %d are allowed: find the second thing in it and move it out", s.name, s.lines, maxLines)
		}
	}
}

// Proves that whoever looks for unsafe code finds it by file name.
func TestUnsafeIsNamed(t *testing.T) {
	for _, s := range sources(t) {
		if _, ok := s.imports["unsafe"]; ok && !strings.HasSuffix(s.name, "_unsafe.go") {
			t.Errorf("%s imports unsafe: move that into a file whose name ends in _unsafe.go", s.name)
		}
	}
}

// Proves that the passive packages start nothing, connect to nothing and log nothing.
func TestPassivePackages(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || !slices.Contains(passive, s.pkg) {
			continue
		}
		for _, logger := range []string{"log", "log/slog", "github.com/rs/zerolog"} {
			if _, ok := s.imports[logger]; ok {
				t.Errorf("%s imports %s: %s writes no logs", s.name, logger, s.pkg)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: %s starts no goroutines", s.at(n), s.pkg)
			case *ast.SelectorExpr:
				if name, ok := s.from(n, "net", "crypto/tls"); ok && opensSockets(name) {
					t.Errorf("%s: %s opens no sockets", s.at(n), s.pkg)
				}
				if _, ok := n.X.(*ast.Ident); ok && n.Sel.Name == "Go" {
					t.Errorf("%s: %s starts no goroutines", s.at(n), s.pkg)
				}
			}
			return true
		})
	}
}

func opensSockets(name string) bool {
	return strings.HasPrefix(name, "Dial") || strings.HasPrefix(name, "Listen") || name == "FileConn" || name == "FileListener"
}

// Proves that no test waits by the real clock: a test that sleeps is slow on a fast machine and wrong on a slow one. Files
// that use testing/synctest may sleep, as its clock is not the real one.
func TestTestsDoNotSleep(t *testing.T) {
	for _, s := range sources(t) {
		_, bubbles := s.imports["testing/synctest"]
		if bubbles || !s.test && !strings.HasPrefix(s.pkg, "tests") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if name, ok := s.from(sel, "time"); ok && name == "Sleep" {
					t.Errorf("%s: a test waits for an event or uses testing/synctest, it does not call time.Sleep", s.at(n))
				}
			}
			return true
		})
	}
}

// from returns the name that a selector takes from one of the packages.
func (s *source) from(sel *ast.SelectorExpr, packages ...string) (name string, ok bool) {
	ident, isIdent := sel.X.(*ast.Ident)
	if !isIdent {
		return "", false
	}
	for _, p := range packages {
		if as, imported := s.imports[p]; imported && as == ident.Name {
			return sel.Sel.Name, true
		}
	}
	return "", false
}

func (s *source) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", s.name, s.set.Position(n.Pos()).Line)
}

// ownPackage returns the folder of a package of ours.
func ownPackage(imported string) (pkg string, ok bool) {
	if imported == module {
		return ".", true
	}
	return strings.CutPrefix(imported, module+"/")
}

// moduleRoot returns the folder of go.mod. Tests run in the folder of their package.
func moduleRoot(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above this folder")
		}
		dir = filepath.Dir(dir)
	}
}

// sources reads every Go file of the module, whatever its build constraints.
func sources(t *testing.T) []*source {
	t.Helper()
	root, set := moduleRoot(t), token.NewFileSet()
	var all []*source
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			hidden := strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")
			if file != root && (hidden || name == "testdata" || name == "vendor" || name == "dist") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		relative, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		s, err := readSource(set, file, filepath.ToSlash(relative))
		all = append(all, s)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < len(allowedImports) {
		t.Fatalf("only %d Go files found below %s", len(all), root)
	}
	return all
}

func readSource(set *token.FileSet, file, name string) (*source, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	parsed, err := parser.ParseFile(set, file, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	s := &source{name: name, pkg: path.Dir(name), test: strings.HasSuffix(name, "_test.go"), lines: bytes.Count(text, []byte("\n")),
		set: set, file: parsed, imports: map[string]string{}}
	for _, spec := range parsed.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		s.imports[imported] = path.Base(imported)
		if spec.Name != nil {
			s.imports[imported] = spec.Name.Name
		}
	}
	return s, nil
}
