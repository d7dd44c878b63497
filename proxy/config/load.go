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
	c := withDefaults[Config]()
	decoder := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict())
	if err := decoder.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.New(describe(data, err))
	}
	if err := decoder.Decode(new(Config)); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one YAML document: keep one")
	}
	for name, r := range c.Routes {
		if reflect.ValueOf(r).IsZero() { // "name:" and nothing: never unmarshalled
			c.Routes[name] = *withDefaults[Route]()
		}
	}
	return c.validated()
}

func (c *Config) validated() (*Config, error) {
	if problems := c.validate(); len(problems) > 0 {
		return nil, problems
	}
	return c, nil
}

// withDefaults returns a value with the `default` tags of its fields applied,
// to be read over, so that a zero that is written down is kept.
func withDefaults[T any]() *T {
	v := new(T)
	applyDefaults(reflect.ValueOf(v).Elem())
	return v
}

func applyDefaults(v reflect.Value) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if text, ok := field.Tag.Lookup("default"); ok {
			setDefault(v.Field(i), text)
		} else if field.IsExported() && field.Type.Kind() == reflect.Struct {
			applyDefaults(v.Field(i))
		}
	}
}

// UnmarshalYAML reads the route over its defaults.
func (r *Route) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Route
	*r = *withDefaults[Route]()
	return unmarshal((*plain)(r))
}

// UnmarshalYAML reads the folder over its defaults.
func (f *Folder) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Folder
	*f = *withDefaults[Folder]()
	return unmarshal((*plain)(f))
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
