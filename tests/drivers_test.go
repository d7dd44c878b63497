package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/tests/testpg"
)

// checks are what every driver is asked to do, in this order. What a check asks for in detail is best read in
// drivers/python/psycopg3_checks.py.
var checks = []string{
	"connect",    // a connection, and who the server says it is
	"settings",   // start-up parameters: they are in effect, and their values are what the server makes of them
	"parameters", // values of many types bound to a query and read back
	"prepared",   // one statement prepared and executed a hundred times
	"copy",       // a thousand lines in and out
	"notify",     // LISTEN on one connection, NOTIFY with a payload on another
	"cancel",     // the driver's own way to cancel a query that runs: 57014, and the connection is usable
	"errors",     // a unique violation and an unknown route as the driver's own errors
	"large",      // a result of 10 MB
	"reconnect",  // the daemon is restarted: the old connection fails, a new one works
}

// The ways by which a driver reaches PostgreSQL.
const (
	wire    = "wire"    // RUN_DIR/.s.PGSQL.5432
	handed  = "handoff" // descriptors from the handoff socket or from "pghandoff exec"
	tcp     = "tcp"     // the TCP listener with TLS
	without = "direct"  // PostgreSQL's own socket, to tell whose a failure is
)

// driver is a driver at the version that is installed here.
type driver struct {
	name  string            // as its documentation spells it, with its language
	from  string            // where the version that is tested comes from
	lines map[string]string // for each way of ours: how to point the driver there, a line of its checks
	file  string            // in the folder of this test
	// command returns the program that runs the checks. It skips the test if a part is missing. The program finds
	// RUN_DIR and ROUTE in its environment and prints a line "version: …" and, for each check, one of
	//
	//	name: ok
	//	name: ok, what is worth a remark
	//	name: none, why the driver has no such thing
	//	name: what is wrong
	//
	// Having printed "restart?" it reads a line, which comes once the daemon has been restarted.
	command func(t *testing.T) []string
	checks  func(t *testing.T, at target) goChecks // in place of command, for a driver of this language
}

// drivers are all of them, in the order of the table.
var drivers = []driver{
	{name: "psql", from: "Debian", file: "drivers/shell/psql_checks.sh", command: script("bash", "postgresql-client", "-c", "command -v psql"),
		lines: map[string]string{wire: `psql "host=$RUN_DIR dbname=$ROUTE user=app"`}},
	{name: "pgx (Go)", from: "go.mod", file: "drivers_pgx_test.go", checks: pgxChecks,
		lines: map[string]string{
			wire:   `pgx.Connect(ctx, "host="+runDir+" dbname="+route+" user=app")`,
			handed: `pgxhandoff.Connect(ctx, handoff.Request{Socket: runDir + "/handoff.sock", Database: route, User: "app"})`,
		}},
	{name: "pgxpool (Go)", from: "go.mod", file: "drivers_pgxpool_test.go", checks: pgxpoolChecks,
		lines: map[string]string{
			wire:   `pgxpool.ParseConfig("host=" + runDir + " dbname=" + route + " user=app")`,
			handed: `config.ConnConfig.DialFunc = pgxhandoff.DialFunc(handoff.Request{Socket: socket, Database: route, User: "app"})`,
		}},
	{name: "lib/pq (Go)", from: "go.mod", file: "drivers_pq_test.go", checks: pqChecks,
		lines: map[string]string{
			wire:   `sql.Open("postgres", "host="+runDir+" dbname="+route+" user=app sslmode=disable")`,
			handed: `connector.Dialer(leases{handoff.Request{Socket: runDir + "/handoff.sock", Database: route, User: "app"}})`,
		}},
	{name: "psycopg 3 (Python)", from: "Debian", file: "drivers/python/psycopg3_checks.py", command: python("psycopg", "python3-psycopg"),
		lines: map[string]string{wire: `psycopg.connect(host=RUN_DIR, dbname=ROUTE, user="app")`}},
	{name: "psycopg2 (Python)", from: "Debian", file: "drivers/python/psycopg2_checks.py", command: python("psycopg2", "python3-psycopg2"),
		lines: map[string]string{wire: `psycopg2.connect(host=RUN_DIR, dbname=ROUTE, user="app")`}},
	{name: "asyncpg (Python)", from: "Debian", file: "drivers/python/asyncpg_checks.py", command: python("asyncpg", "python3-asyncpg"),
		lines: map[string]string{wire: `asyncpg.connect(host=RUN_DIR, database=ROUTE, user="app")`}},
	{name: "pg8000 (Python)", from: "Debian", file: "drivers/python/pg8000_checks.py", command: python("pg8000", "python3-pg8000"),
		lines: map[string]string{wire: `pg8000.connect(unix_sock=RUN_DIR + "/.s.PGSQL.5432", database=ROUTE, user="app")`}},
	{name: "SQLAlchemy (Python)", from: "Debian", file: "drivers/python/sqlalchemy_checks.py", command: python("sqlalchemy, psycopg2", "python3-sqlalchemy"),
		lines: map[string]string{wire: `create_engine(f"postgresql+psycopg2://app@/{ROUTE}?host={RUN_DIR}", pool_pre_ping=True)`}},
	{name: "pg (Node.js)", from: "npm", file: "drivers/node/pg_checks.js", command: node("pg"),
		lines: map[string]string{
			wire:   `new pg.Client({ host: RUN_DIR, database: ROUTE, user: 'app' })`,
			handed: `new pg.Client({ stream: () => new Handed(), host: RUN_DIR, database: ROUTE, user: 'app' })`,
		}},
	{name: "postgres (Node.js)", from: "npm", file: "drivers/node/postgres_checks.js", command: node("postgres"),
		lines: map[string]string{
			wire:   `postgres({ host: RUN_DIR, database: ROUTE, username: 'app' })`,
			handed: `postgres({ socket: () => new Handed(), host: RUN_DIR, database: ROUTE, username: 'app' })`,
		}},
	{name: "JDBC (Java)", from: "Debian", file: "drivers/java/JdbcChecks.java", command: java("drivers/java/JdbcChecks.java"),
		lines: map[string]string{
			tcp: `DriverManager.getConnection("jdbc:postgresql://" + ADDRESS + "/" + ROUTE + "?sslmode=verify-full&sslrootcert=" + ROOTS, USER, PASSWORD)`,
		}},
	{name: "pg (Ruby)", from: "Debian", file: "drivers/ruby/pg_checks.rb", command: script("ruby", "ruby-pg", "-rpg", "-e", ""),
		lines: map[string]string{wire: `PG.connect(host: RUN_DIR, dbname: ROUTE, user: "app")`}},
	{name: "DBD::Pg (Perl)", from: "Debian", file: "drivers/perl/dbd_pg_checks.pl", command: script("perl", "libdbd-pg-perl", "-MDBD::Pg", "-e", "1"),
		lines: map[string]string{wire: `DBI->connect("dbi:Pg:host=$RUN_DIR;dbname=$ROUTE", "app", "")`}},
	{name: "PDO (PHP)", from: "Debian", file: "drivers/php/pdo_checks.php", command: script("php", "php-cli php-pgsql", "-r", `exit(extension_loaded("pdo_pgsql") ? 0 : 1);`),
		lines: map[string]string{wire: `new PDO("pgsql:host=$RUN_DIR;dbname=$ROUTE", "app")`}},
}

// Proves that every driver works by every way that it can take, as far as it does by PostgreSQL's own socket, and that
// docs/drivers.md says what was found.
func TestDrivers(t *testing.T) {
	databases := make([]string, len(drivers))
	for i := range drivers {
		databases[i] = fmt.Sprintf("direct%d", i)
	}
	// A database for each direct run: to end the sessions of one driver's is how its server is "restarted".
	pg := testpg.Start(t, testpg.With(func(c *throwaway.Config) {
		c.Databases = databases
		c.HBA = []string{ // a driver that has no client certificate comes in directly
			"hostssl nosuch," + strings.Join(databases, ",") + " all 127.0.0.1/32 scram-sha-256",
			"hostssl all all 127.0.0.1/32 scram-sha-256 clientcert=verify-full",
		}
	}))
	found := newFindings()
	t.Run("all", func(t *testing.T) { // returns when all that is parallel in it has ended
		for i, d := range drivers {
			for _, way := range d.ways() {
				t.Run(d.name+"/"+way, func(t *testing.T) {
					t.Parallel()
					at := place(t, pg, way, databases[i])
					r := d.run(t, at)
					r.want(t)
					at.used(t)
					found.add(d, way, r)
				})
			}
		}
	})
	found.compare(t)
}

// ways are those of the lines, and PostgreSQL's own socket.
func (d driver) ways() []string {
	all := []string{without}
	for _, way := range []string{wire, handed, tcp} {
		if d.lines[way] != "" {
			all = append(all, way)
		}
	}
	return all
}

// Proves that what docs/drivers.md tells to write is what the checks do.
func TestDriverLinesAreOfTheChecks(t *testing.T) {
	for _, d := range drivers {
		source, err := os.ReadFile(d.file)
		if err != nil {
			t.Fatal(err)
		}
		for way, line := range d.lines {
			if !strings.Contains(string(source), line) {
				t.Errorf("%s, %s: no such line in %s: %s", d.name, way, d.file, line)
			}
		}
	}
}

// driversFolder is the folder of the scripts.
func driversFolder(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("drivers")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
