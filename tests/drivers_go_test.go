package tests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"testing"
	"time"
)

const goCheckPatience = 30 * time.Second

// What the checks of all languages send.
const (
	driverText   = "Käse 'n' \\ ☕"
	driverLarge  = "select repeat('x', 1000) from generate_series(1, 10000)"
	driverSleeps = "select count(*) from pg_stat_activity where pid = $1 and wait_event = 'PgSleep'"
)

// goChecks are the checks of a driver of this language.
type goChecks struct {
	module string // whose version in go.mod is the driver's
	checks map[string]func(ctx context.Context) error
	close  func()
}

// lacksIt is a check's answer if the driver has no such thing; it says why.
type lacksIt string

func (l lacksIt) Error() string { return string(l) }

// remark is a check's answer if all went well and there is something to say about it.
type remark string

func (r remark) Error() string { return string(r) }

// run runs the checks in their order.
func (g goChecks) run(t *testing.T, d driver) outcome {
	t.Helper()
	if g.close != nil {
		defer g.close()
	}
	o := outcome{version: moduleVersion(t, g.module), said: map[string]string{}}
	for _, name := range checks {
		check, ok := g.checks[name]
		if !ok {
			continue // want finds it missing
		}
		ctx, cancel := context.WithTimeout(t.Context(), goCheckPatience)
		err := check(ctx)
		cancel()
		var (
			lacking lacksIt
			worth   remark
		)
		switch {
		case err == nil:
			o.said[name] = good
		case errors.As(err, &worth):
			o.said[name] = good + ", " + string(worth)
		case errors.As(err, &lacking):
			o.said[name] = lacks + string(lacking)
		default:
			o.said[name] = err.Error()
		}
	}
	return o
}

// moduleVersion is what go.mod says.
func moduleVersion(t *testing.T, module string) string {
	t.Helper()
	text, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^\s` + regexp.QuoteMeta(module) + ` v(\S+)$`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("go.mod does not require %s itself", module)
	}
	return string(found[1])
}

// same compares what came with what should have.
func same(got, want any) error {
	if reflect.DeepEqual(got, want) {
		return nil
	}
	return fmt.Errorf("got %.200v, want %.200v", got, want)
}

// each runs the steps until one fails.
func each(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// poll waits until good says so or fails.
func poll(ctx context.Context, good func() (bool, error)) error {
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		if done, err := good(); done || err != nil {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("waited in vain: %w", ctx.Err())
		}
	}
}
