package throwaway_test

import (
	"context"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/tests/testca"
	"pghandoff/tests/testpg"
)

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// Proves that the default server of the tests takes mutual TLS and SCRAM at its URL and nothing less.
func TestMutualTLSServer(t *testing.T) {
	c := testpg.Start(t)
	var version, subject, user, database string
	err := connect(t, c.URL()).QueryRow(t.Context(), `select version, client_dn, current_user, current_database()
		from pg_stat_ssl where pid = pg_backend_pid()`).Scan(&version, &subject, &user, &database)
	if err != nil {
		t.Fatal(err)
	}
	if version != "TLSv1.3" || subject != "/CN=app" || user != "app" || database != "orders" {
		t.Errorf("got %s, %s, %s, %s", version, subject, user, database)
	}
	for _, weaker := range [][]string{{"sslmode=disable"}, {"sslcert=", "sslkey="}, {"password=wrong"}} {
		if conn, err := pgx.Connect(t.Context(), c.URL(weaker...)); err == nil {
			_ = conn.Close(t.Context())
			t.Errorf("connected with %v", weaker)
		}
	}
}

func TestRestartKeepsDataAndReloadTakesACertificate(t *testing.T) {
	c := testpg.Start(t, testpg.TLS, testpg.Setting("work_mem", "5MB"))
	if out, err := c.Psql(t.Context(), "create table kept as select 7 as n; show work_mem"); err != nil || out != "5MB" {
		t.Fatalf("got %q, %v", out, err)
	}
	if err := c.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out, err := c.Psql(t.Context(), "select n, n+1 from kept"); err != nil || out != "7|8" {
		t.Fatalf("got %q, %v", out, err)
	}
	if err := c.SetServerCertificate(testca.Server(t, c.CA, testca.Expired)); err != nil {
		t.Fatal(err)
	}
	if err := c.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := pgx.Connect(t.Context(), c.URL()); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("with an expired server certificate: %v", err)
	}
}

func TestTwoAtOnceAndNothingIsLeft(t *testing.T) {
	clusters := make([]*throwaway.Cluster, 2)
	var wg sync.WaitGroup
	for i, config := range []throwaway.Config{{Auth: "md5"}, {Auth: "cert", Databases: []string{"stock"}}} {
		wg.Go(func() {
			c, err := throwaway.Start(t.Context(), config)
			if err != nil {
				t.Error(err)
				return
			}
			clusters[i] = c
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	connect(t, clusters[0].URL())
	connect(t, clusters[1].URL("password=", "dbname=stock"))
	for _, c := range clusters {
		pid := c.Pid()
		if err := errors.Join(c.Close(), c.Close()); err != nil {
			t.Error(err)
		}
		if err := syscall.Kill(-pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("processes of the server are left: %v", err)
		}
		if _, err := os.Stat(c.Dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("folder is left: %v", err)
		}
	}
}

func TestStartFailsWithTheServersWords(t *testing.T) {
	_, err := throwaway.Start(t.Context(), throwaway.Config{Settings: map[string]string{"work_mem": "lots"}})
	if err == nil || !strings.Contains(err.Error(), `"work_mem"`) {
		t.Errorf("got %v", err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/mine", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := throwaway.Start(t.Context(), throwaway.Config{Dir: dir}); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("a folder in use: %v", err)
	}
	if _, err := os.Stat(dir + "/mine"); err != nil {
		t.Errorf("a folder in use was removed: %v", err)
	}
}

func TestURLTakesAwayWhatIsEmpty(t *testing.T) {
	c := &throwaway.Cluster{Host: "127.0.0.1", Port: 1, Role: "app", Password: "secret", Database: "orders", RootsFile: "/r"}
	u, err := url.Parse(c.URL("password=", "sslrootcert=", "sslmode=require"))
	if err != nil || u.String() != "postgres://app@127.0.0.1:1/orders?sslmode=require" {
		t.Errorf("got %v, %v", u, err)
	}
}
