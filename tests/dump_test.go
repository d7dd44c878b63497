package tests

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os/exec"
	"testing"
	"time"

	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/tests/testpg"
)

// content fills a database with about so many megabytes, of all kinds that a
// dump has ways of its own for. The large tables are not logged, for speed.
const content = `
create unlogged table wide (id bigint primary key, body text not null, bytes bytea);
insert into wide select i, repeat(md5(i::text), 30), decode(md5((i * 7)::text), 'hex') from generate_series(1, %[1]d * 1000) i;
create table kinds (id int primary key);
insert into kinds select i from generate_series(0, 9) i;
create table narrow (id serial primary key, kind int references kinds, a float8, b numeric(20, 6), c timestamptz default now(), d jsonb, e text[]);
insert into narrow (kind, a, b, d, e) select i %% 10, sqrt(i), i / 7.0, jsonb_build_object('n', i, 's', 'é"\' || i), array['a,b', null, E'tab\t\\ line\n' || i]
	from generate_series(1, %[1]d * 100) i;
create unlogged table toasted (id int, body text);
insert into toasted select i, (select string_agg(md5((i * 1000 + j)::text), '') from generate_series(1, 2000) j) from generate_series(1, greatest(1, %[1]d / 16)) i;
create index on narrow (b);
create view v as select count(*) from wide;
select lo_from_bytea(0, decode(repeat('00ff', 100000), 'hex'));
`

// Proves that pg_dump and pg_restore work through the wire socket at the same
// time, whatever the size: the copy of the database has the checksum of the
// original.
func TestDumpAndRestoreThroughTheWireSocket(t *testing.T) {
	dump, restore := testpg.Require(t, "pg_dump", "postgresql-client"), testpg.Require(t, "pg_restore", "postgresql-client")
	megabytes := 64
	if whole() {
		megabytes = 1024
	}
	pg := testpg.Start(t, testpg.With(func(c *throwaway.Config) { c.Databases = []string{"twin"} }), testpg.Setting("autovacuum", "off"))
	d := newDaemon(t)
	d.configure(pg, settings{Route: fmt.Sprintf(`  twin:
    servers: ["127.0.0.1:%d"]
    user: %q
    password: {file: %q}
    tls: {identity: app}
    allow: [any: true]`, pg.Port, pg.Role, d.dir+"/password")})
	d.start("serve", "--config", d.config)
	d.awaitWarm()
	r := d.session()
	r.conn.SetDeadline(time.Now().Add(5 * time.Minute))
	r.send(message('Q', fmt.Sprintf(content, megabytes)+"\x00"))
	r.values()
	r.conn.Close()
	before := d.residentMemory()
	from, to := exec.CommandContext(t.Context(), dump, "-h", d.runDir, "-Fc", "-Z0", "orders"),
		exec.CommandContext(t.Context(), restore, "-h", d.runDir, "--exit-on-error", "-d", "twin")
	size := new(counter)
	pipe(t, from, to, size)
	if int(*size) < megabytes*1000*1000 {
		t.Errorf("the dump has %d bytes", *size)
	}
	want, got := checksum(t, exec.CommandContext(t.Context(), dump, "-h", d.runDir, "orders")), checksum(t, exec.CommandContext(t.Context(), dump, pg.URL("dbname=twin")))
	if got != want {
		t.Errorf("the copy has the checksum %s, the original %s", got, want)
	}
	after := d.residentMemory()
	if after > before+16<<20 {
		t.Errorf("the daemon takes %d KB after it and took %d KB before", after>>10, before>>10)
	}
	t.Logf("a dump of %d MB, memory of the daemon %d KB before and %d KB after, checksum %s", *size>>20, before>>10, after>>10, want)
}

// counter counts bytes.
type counter int

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// pipe runs two programs, the first one's output being the other's input, past w.
func pipe(t *testing.T, from, to *exec.Cmd, w io.Writer) {
	t.Helper()
	var said lockedBuffer
	from.Stderr, to.Stderr, to.Stdout = &said, &said, &said
	out, err := from.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	to.Stdin = io.TeeReader(out, w)
	if err := from.Start(); err != nil {
		t.Fatal(err)
	}
	errTo := to.Run()
	if err := from.Wait(); err != nil || errTo != nil {
		t.Fatalf("%s: %v; %s: %v\n%s", from.Args[0], err, to.Args[0], errTo, said.String())
	}
}

// checksum is the digest of a dump, without the lines that differ between two.
func checksum(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	lines := bufio.NewReaderSize(out, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if !bytes.HasPrefix(line, []byte(`\restrict`)) && !bytes.HasPrefix(line, []byte(`\unrestrict`)) {
			sum.Write(line)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, &said)
	}
	return hex.EncodeToString(sum.Sum(nil))
}
