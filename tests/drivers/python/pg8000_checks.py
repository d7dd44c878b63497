"""pg8000 1.10, as Debian 12 has it, against pghandoff."""
import datetime
import io

import pg8000
from checks import LARGE, LINES, ROUTE, RUN_DIR, TEXT, Lacks, expect, refused, report, restart


def connect():
    conn = pg8000.connect(unix_sock=RUN_DIR + "/.s.PGSQL.5432", database=ROUTE, user="app")
    conn.autocommit = True
    return conn


def query(conn, sql, values=()):
    cur = conn.cursor()
    cur.execute(sql, values)
    return cur.fetchall()


def execute(conn, sql, stream=None):
    conn.cursor().execute(sql, stream=stream)


def connects():
    conn = connect()
    expect(query(conn, "select current_user"), (["app"],))
    conn.close()


def settings():
    raise Lacks("this version sends nothing but user and database at its start (later ones take application_name and startup_params)")


def parameters():
    values = [42, TEXT, None, datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.timezone.utc), b"\0\1\xff", [1, 2, 3]]
    conn = connect()
    expect(query(conn, "select %s::int, %s::text, %s::text, %s::timestamptz, %s::bytea, %s::int[]", values)[0], values)
    conn.close()


def prepared():
    conn = connect()  # each statement is prepared under a name and kept
    for i in range(100):
        expect(query(conn, "select cast(%s as int) + 1", (i,)), ([i + 1],))
    named = query(conn, "select name from pg_prepared_statements where statement like '%%+ 1'")
    expect(1 <= len(named) <= 2, True)  # one for each width of integer that it sent
    conn.close()


def copy():
    conn = connect()
    execute(conn, "create temp table copied (a int, b text)")
    execute(conn, "copy copied from stdin", io.BytesIO(("\n".join(LINES) + "\n").encode()))
    out = io.BytesIO()
    execute(conn, "copy copied to stdout", out)
    expect(out.getvalue().decode().splitlines(), LINES)
    expect(query(conn, "select count(*) from copied"), ([len(LINES)],))
    conn.close()


def notify():
    listener, sender = connect(), connect()
    execute(listener, "listen checks_pg8000")
    execute(sender, "notify checks_pg8000, 'payload'")
    while not listener.notifies:
        query(listener, "select 1")  # it reads notifications while it waits for something else
    expect(listener.notifies[0], (query(sender, "select pg_backend_pid()")[0][0], "checks_pg8000"))
    listener.close()
    sender.close()
    return "this version drops the payload"


def cancel():
    raise Lacks("it sends no cancel requests")


def errors():
    conn = connect()
    execute(conn, "create temp table once (a int constraint only_once unique)")
    execute(conn, "insert into once values (1)")
    refused(lambda: execute(conn, "insert into once values (1)"), pg8000.ProgrammingError, "23505")
    conn.close()
    nosuch = {"unix_sock": RUN_DIR + "/.s.PGSQL.5432", "database": "nosuch", "user": "app"}
    refused(lambda: pg8000.connect(**nosuch), pg8000.ProgrammingError, "3D000")


def large():
    conn = connect()
    conn.autocommit = False  # it fetches from a portal, 100 rows at a time
    rows = query(conn, LARGE)
    expect((len(rows), {row[0] for row in rows}), (10000, {"x" * 1000}))
    conn.close()


def reconnect():
    conn = connect()
    expect(query(conn, "select 1"), ([1],))
    restart()
    refused(lambda: query(conn, "select 1"), Exception, "")  # even a struct.error, when the stream ends
    conn = connect()
    expect(query(conn, "select 1"), ([1],))
    conn.close()


report(pg8000.__version__, connect=connects, settings=settings, parameters=parameters, prepared=prepared, copy=copy,
       notify=notify, cancel=cancel, errors=errors, large=large, reconnect=reconnect)
