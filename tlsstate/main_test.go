package tlsstate_test

import (
	"os"
	"os/exec"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(hopVariable) != "" {
		os.Exit(hopChild())
	}
	goleak.VerifyTestMain(m)
}

// needOpenSSL gives the path of openssl, or skips the test. Where PGHANDOFF_TEST_REQUIRE is "all" a skip is a failure.
func needOpenSSL(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("openssl")
	if err != nil {
		const sentence = "openssl is missing: install the Debian package openssl"
		if os.Getenv("PGHANDOFF_TEST_REQUIRE") == "all" {
			t.Fatal(sentence)
		}
		t.Skip(sentence)
	}
	return path
}
