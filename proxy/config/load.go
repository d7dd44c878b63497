package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"time"

	"github.com/goccy/go-yaml"
)

// maxFile bounds a configuration file. 4 MiB.
const maxFile = 4 << 20

// Load reads and validates a configuration file.
func Load(path string) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s: longer than %d bytes", path, maxFile)
	}
	c, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// Parse reads and validates a configuration in YAML.
func Parse(data []byte) (*Config, error) {
	c := new(Config)
	decoder := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict())
	if err := decoder.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		// FormatError without its source lines: they may hold a password.
		return nil, errors.New(describe(data, err))
	}
	if err := decoder.Decode(new(Config)); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one YAML document: keep one")
	}
	return c.finish()
}

// describe renders a YAML error with its position and the offending line,
// unless the line could hold a secret.
func describe(data []byte, err error) string {
	var syntax yaml.Error
	if !errors.As(err, &syntax) {
		return err.Error()
	}
	token := syntax.GetToken()
	if token == nil || token.Position == nil {
		return syntax.GetMessage()
	}
	line := token.Position.Line
	lines := bytes.Split(data, []byte("\n"))
	text := fmt.Sprintf("line %d: %s", line, syntax.GetMessage())
	if line >= 1 && line <= len(lines) {
		shown := bytes.TrimSpace(lines[line-1])
		if !bytes.Contains(shown, []byte("value")) && !bytes.Contains(shown, []byte("password")) && len(shown) < 200 {
			text += fmt.Sprintf("\n  %d | %s", line, shown)
		}
	}
	return text
}

// finish fills in defaults and validates.
func (c *Config) finish() (*Config, error) {
	applyDefaults(reflect.ValueOf(c).Elem())
	if problems := c.validate(); len(problems) > 0 {
		return nil, problems
	}
	return c, nil
}

// applyDefaults sets what nothing was written for to its `default` tag: in a
// struct that is wholly zero each field, elsewhere only empty strings, so that
// a zero that was written down is kept (sections with numbers have their
// defaults set before they are read, see withDefaults).
func applyDefaults(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			applyDefaults(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			applyDefaults(v.Index(i))
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			e := reflect.New(v.Type().Elem()).Elem()
			e.Set(v.MapIndex(k))
			applyDefaults(e)
			v.SetMapIndex(k, e)
		}
	case reflect.Struct:
		fresh := v.IsZero()
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if !field.IsExported() {
				continue
			}
			text, ok := field.Tag.Lookup("default")
			switch {
			case !ok:
				applyDefaults(v.Field(i))
			case fresh || v.Field(i).Kind() == reflect.String && v.Field(i).Len() == 0:
				setDefault(v.Field(i), text)
			}
		}
	}
}

// withDefaults reads a section over its defaults.
func withDefaults[T any](section *T, unmarshal func(any) error) error {
	applyDefaults(reflect.ValueOf(section).Elem())
	return unmarshal(section)
}

// UnmarshalYAML reads the section over its defaults.
func (l *Limits) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Limits
	return withDefaults((*plain)(l), unmarshal)
}

// UnmarshalYAML reads the section over its defaults.
func (p *Pool) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Pool
	return withDefaults((*plain)(p), unmarshal)
}

// UnmarshalYAML reads the section over its defaults.
func (t *Timeouts) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Timeouts
	return withDefaults((*plain)(t), unmarshal)
}

// UnmarshalYAML reads the section over its defaults.
func (p *Password) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Password
	return withDefaults((*plain)(p), unmarshal)
}

func setDefault(v reflect.Value, text string) {
	switch v.Interface().(type) {
	case string:
		v.SetString(text)
	case int:
		n, err := strconv.Atoi(text)
		if err != nil {
			panic("default tag: " + err.Error()) // a bug in this package, found by any test
		}
		v.SetInt(int64(n))
	case Duration:
		d, err := time.ParseDuration(text)
		if err != nil {
			panic("default tag: " + err.Error())
		}
		v.SetInt(int64(d))
	}
}

// setDefaults fills a section that the caller is about to change.
func setDefaults[T any](section *T) { applyDefaults(reflect.ValueOf(section).Elem()) }
