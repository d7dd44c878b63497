// Package testpg gives tests a real PostgreSQL and says what is missing on the machine.
//
// Start makes a server of the test's own, Shared one for the whole test process (its package's TestMain calls [Main]).
// [Require] asks for a program. What is missing skips the test with a sentence that names the part and the Debian
// package; with PGHANDOFF_TEST_REQUIRE=all, as in CI, it fails the test instead.
package testpg
