package config

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/token"
)

// describe says what is wrong with a file, where, and at which key. Any value
// in the file may be a secret, also one under a misspelt key or none, so none
// is shown.
func describe(data []byte, err error) string {
	var at yaml.Error
	if !errors.As(err, &at) {
		// Not err.Error(): it names the alias that a value with * in front is.
		return "it cannot be read as YAML: put values that begin with * or & in quotes"
	}
	t := at.GetToken()
	if t == nil || t.Position == nil {
		return messageOf(at, "")
	}
	key := keyAt(t)
	text := fmt.Sprintf("line %d: %s", t.Position.Line, messageOf(at, key))
	if shown := keyOfLine(data, t.Position.Line); shown != "" && (shown == key || settingNames[shown]) {
		text += fmt.Sprintf("\n  %d | %s:", t.Position.Line, shown)
	}
	return text
}

// keyAt returns the key that t is; empty: it is a value, or a part of one that
// only looks like a key, as after a comma in a password without quotes.
func keyAt(t *token.Token) string {
	if t.Type == token.StringType && t.Next != nil && t.Next.Type == token.MappingValueType {
		return t.Value
	}
	return ""
}

var (
	quoted    = regexp.MustCompile(`"(?:[^"\\]|\\.)*"?`)
	character = regexp.MustCompile(`'[\pL\pN]'`)
	lineKey   = regexp.MustCompile(`^\s*(?:- +)?([\w.-]+):(?:\s|$)`)
)

// messageOf says what is wrong without quoting anything but key.
func messageOf(err yaml.Error, key string) string {
	var wrongType *yaml.TypeError
	var overflow *yaml.OverflowError
	switch {
	case errors.As(err, &wrongType):
		return "this must be " + nameOf(wrongType.DstType)
	case errors.As(err, &overflow):
		return "this number is too large or too small"
	}
	text := quoted.ReplaceAllStringFunc(err.GetMessage(), func(s string) string {
		if key != "" && strings.Trim(s, `"`) == key {
			return s
		}
		return `"…"`
	})
	return character.ReplaceAllString(text, "'…'")
}

// nameOf says in words what a Go type is in YAML.
func nameOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Uint32:
		return "a whole number"
	case reflect.String:
		return "text"
	case reflect.Slice:
		return "a list"
	}
	return "a section with keys"
}

// keyOfLine returns the first key that stands in a line; empty: none does.
func keyOfLine(data []byte, line int) string {
	lines := bytes.Split(data, []byte("\n"))
	if line < 1 || line > len(lines) {
		return ""
	}
	if m := lineKey.FindSubmatch(lines[line-1]); m != nil {
		return string(m[1])
	}
	return ""
}

// settingNames are all the keys that a configuration can have.
var settingNames = namesIn(reflect.TypeFor[Config](), map[string]bool{})

func namesIn(t reflect.Type, names map[string]bool) map[string]bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return namesIn(t.Elem(), names)
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() {
				names[f.Tag.Get("yaml")] = true
				namesIn(f.Type, names)
			}
		}
	}
	return names
}
