package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"pghandoff/proxy/config"
)

// source is where the configuration comes from: --config, a URL argument, or
// PGHANDOFF_URL.
type source struct {
	file string
	url  string
}

const urlVariable = "PGHANDOFF_URL"

// addFlags adds --config and takes a URL as the only argument.
func (s *source) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&s.file, "config", "c", "", "configuration file (YAML)")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return usage(errors.New("at most one URL can be given: several routes need a file (--config)"))
		}
		if len(args) == 1 {
			s.url = args[0]
		}
		return nil
	}
}

// load reads the configuration.
func (s *source) load() (*config.Config, error) {
	switch {
	case s.file != "" && s.url != "":
		return nil, usage(errors.New("give --config or a URL, not both"))
	case s.file != "":
		return wrongUse(config.Load(s.file))
	case s.url != "":
		return wrongUse(config.FromURL(s.url, true, os.Getenv))
	}
	if url := os.Getenv(urlVariable); url != "" {
		return wrongUse(config.FromURL(url, false, os.Getenv))
	}
	return nil, usage(errors.New("what to connect to? Give --config FILE, or a postgres:// URL as argument or, with a password, in " + urlVariable))
}

func wrongUse(c *config.Config, err error) (*config.Config, error) {
	if err != nil {
		return nil, usage(err)
	}
	return c, nil
}
