package config_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"
)

const referencePath = "../../docs/settings.md"

// The reference of settings is made from the struct. After a change of the
// struct: PGHANDOFF_UPDATE=1 go test ./proxy/config -run Reference
func TestReferenceOfSettingsIsCurrent(t *testing.T) {
	want := reference(t)
	if os.Getenv("PGHANDOFF_UPDATE") != "" {
		if err := os.WriteFile(referencePath, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(referencePath)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/settings.md is not what the struct says: run PGHANDOFF_UPDATE=1 go test ./proxy/config -run Reference")
	}
}

func reference(t *testing.T) string {
	file, err := parser.ParseFile(token.NewFileSet(), "config.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	structs := map[string]*ast.StructType{}
	for _, d := range file.Decls {
		if g, ok := d.(*ast.GenDecl); ok {
			for _, s := range g.Specs {
				if ts, ok := s.(*ast.TypeSpec); ok {
					if st, ok := ts.Type.(*ast.StructType); ok {
						structs[ts.Name.Name] = st
					}
				}
			}
		}
	}
	var b strings.Builder
	b.WriteString("# Settings\n\nMade from the struct in `proxy/config/config.go`; do not edit. Times are written with their unit\n(`500ms`, `5s`, `1h`). Unknown keys are errors.\n\n| key | default | meaning |\n|---|---|---|\n")
	section(&b, structs, "Config", "")
	return b.String()
}

func section(b *strings.Builder, structs map[string]*ast.StructType, name, prefix string) {
	for _, f := range structs[name].Fields.List {
		tag := reflect.StructTag(strings.Trim(f.Tag.Value, "`"))
		key := prefix + tag.Get("yaml")
		inner, suffix := element(f.Type)
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", key+suffix, code(tag.Get("default")), strings.ReplaceAll(strings.TrimSpace(f.Doc.Text()), "\n", " "))
		if _, ok := structs[inner]; ok {
			section(b, structs, inner, key+suffix+".")
		}
	}
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

// element returns the name of the struct within a field's type and how its
// place is written in a key.
func element(e ast.Expr) (name, suffix string) {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name, ""
	case *ast.StarExpr:
		return element(e.X)
	case *ast.ArrayType:
		name, _ := element(e.Elt)
		return name, "[]"
	case *ast.MapType:
		name, _ := element(e.Value)
		return name, ".NAME"
	}
	return "", ""
}
