package testpg

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"pghandoff/cmd/pghandoff/throwaway"
)

// RequireEnv names the environment variable that turns skips into failures when it is "all".
const RequireEnv = "PGHANDOFF_TEST_REQUIRE"

const startLimit = 90 * time.Second // for a busy machine; two seconds are usual

// Option changes the server's configuration.
type Option func(*throwaway.Config)

// Plain is a server without TLS that wants SCRAM.
func Plain(c *throwaway.Config) { c.TLS, c.ClientCert = false, false }

// TLS is a server that takes TLS only and wants SCRAM.
func TLS(c *throwaway.Config) { c.TLS, c.ClientCert = true, false }

// MTLS is a server that wants a client certificate and SCRAM; it is what Start makes without options.
func MTLS(c *throwaway.Config) { c.TLS, c.ClientCert = true, true }

// Auth sets the authentication method.
func Auth(method string) Option { return func(c *throwaway.Config) { c.Auth = method } }

// Setting sets a line of postgresql.conf.
func Setting(name, value string) Option {
	return func(c *throwaway.Config) {
		if c.Settings == nil {
			c.Settings = map[string]string{}
		}
		c.Settings[name] = value
	}
}

// With changes the configuration freely.
func With(change func(*throwaway.Config)) Option { return change }

// Start starts a server that ends with the test.
func Start(t testing.TB, options ...Option) *throwaway.Cluster {
	t.Helper()
	c, err := start(t.Context(), options)
	if err != nil {
		Missing(t, err.Error())
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("PostgreSQL's log ends with:\n%s", c.Log())
		}
		if err := c.Close(); err != nil {
			t.Errorf("close PostgreSQL: %v", err)
		}
	})
	return c
}

func start(ctx context.Context, options []Option) (*throwaway.Cluster, error) {
	config := throwaway.Config{TLS: true, ClientCert: true}
	for _, option := range options {
		option(&config)
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	return throwaway.Start(ctx, config)
}

var shared struct {
	once    sync.Once
	cluster *throwaway.Cluster
	err     error
	owned   bool // Main runs and will close it
}

// Shared returns the one server of this test process, made as by Start without options. Tests must leave it as they
// found it. The package's TestMain must call Main.
func Shared(t testing.TB) *throwaway.Cluster {
	t.Helper()
	if !shared.owned {
		t.Fatal("testpg.Shared needs a TestMain that calls testpg.Main(m): nobody else would stop the server")
	}
	shared.once.Do(func() { shared.cluster, shared.err = start(context.Background(), nil) })
	if shared.err != nil {
		Missing(t, shared.err.Error())
	}
	return shared.cluster
}

// Main runs the package's tests and then stops the shared server. Use it as
//
//	func TestMain(m *testing.M) { os.Exit(testpg.Main(m)) }
func Main(m *testing.M) (code int) {
	shared.owned = true
	code = m.Run()
	if shared.cluster != nil {
		if err := shared.cluster.Close(); err != nil {
			fmt.Fprintf(os.Stderr, "close PostgreSQL: %v\n", err)
			code = 1
		}
	}
	return code
}

// Require returns the path of a program, or skips the test naming the Debian package that has it.
func Require(t testing.TB, program, debianPackage string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		Missing(t, fmt.Sprintf("program %s is missing (Debian: apt install %s)", program, debianPackage))
	}
	return path
}

// Missing skips the test, or fails it where everything must be there.
func Missing(t testing.TB, sentence string) {
	t.Helper()
	if os.Getenv(RequireEnv) == "all" {
		t.Fatalf("%s; %s=all makes this a failure", sentence, RequireEnv)
	}
	t.Skip(sentence)
}
