"""psycopg2 against pghandoff."""
import datetime
import io
import select
import threading

import psycopg2
import psycopg2.errors
from checks import LARGE, LINES, ROUTE, RUN_DIR, SLEEPING, TEXT, expect, poll, refused, report, restart


def connect(**more):
    conn = psycopg2.connect(host=RUN_DIR, dbname=ROUTE, user="app", **more)
    conn.autocommit = True
    return conn


def one(conn, query, values=None):
    with conn.cursor() as cur:
        cur.execute(query, values)
        return cur.fetchone()


def execute(conn, query):
    with conn.cursor() as cur:
        cur.execute(query)


def connects():
    conn = psycopg2.connect(host=RUN_DIR, dbname=ROUTE, user="app")
    with conn:
        expect(one(conn, "select current_user"), ("app",))
    expect(str(conn.server_version)[:2], one(conn, "show server_version_num")[0][:2])
    conn.close()


def settings():
    conn = connect(application_name="checks", options="-c work_mem=5MB -c TimeZone=Asia/Tokyo")
    for name, value in ("application_name", "checks"), ("work_mem", "5MB"), ("TimeZone", "Asia/Tokyo"):
        expect(one(conn, f"show {name}"), (value,))
    expect(conn.get_parameter_status("TimeZone"), "Asia/Tokyo")
    conn.close()


def parameters():
    values = (42, TEXT, None, datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.timezone.utc), b"\0\1\xff", [1, 2, 3])
    conn = connect()
    got = one(conn, "select %s::int, %s::text, %s::text, %s::timestamptz, %s::bytea, %s::int[]", values)
    expect((*got[:4], bytes(got[4]), got[5]), values)
    conn.close()


def prepared():
    conn = connect()
    execute(conn, "prepare plus_one (int) as select $1 + 1")
    for i in range(100):
        expect(one(conn, "execute plus_one (%s)", (i,)), (i + 1,))
    conn.close()
    return "by SQL's PREPARE: it sends bound values as text of the query"


def copy():
    conn = connect()
    with conn.cursor() as cur:
        cur.execute("create temp table copied (a int, b text)")
        cur.copy_expert("copy copied from stdin", io.StringIO("\n".join(LINES) + "\n"))
        out = io.StringIO()
        cur.copy_expert("copy copied to stdout", out)
        expect(out.getvalue().splitlines(), LINES)
    conn.close()


def notify():
    listener, sender = connect(), connect()
    execute(listener, "listen checks_psycopg2")
    one(sender, "select pg_notify('checks_psycopg2', %s)", (TEXT,))
    while not listener.notifies:
        select.select([listener], [], [])
        listener.poll()
    expect((listener.notifies[0].payload, listener.notifies[0].pid), (TEXT, sender.info.backend_pid))
    listener.close()
    sender.close()


def cancel():
    conn, watcher = connect(), connect()

    def stop():
        poll(lambda: one(watcher, SLEEPING.format(conn.info.backend_pid))[0])
        conn.cancel()
    thread = threading.Thread(target=stop)
    thread.start()
    refused(lambda: one(conn, "select pg_sleep(60)"), psycopg2.errors.QueryCanceled, "57014")
    thread.join()
    expect(one(conn, "select 1"), (1,))
    conn.close()
    watcher.close()


def errors():
    conn = connect()
    execute(conn, "create temp table once (a int constraint only_once unique)")
    execute(conn, "insert into once values (1)")
    e = refused(lambda: execute(conn, "insert into once values (1)"), psycopg2.errors.UniqueViolation, "23505")
    expect(e.diag.constraint_name, "only_once")
    conn.close()
    refused(lambda: psycopg2.connect(host=RUN_DIR, dbname="nosuch", user="app"), psycopg2.OperationalError, "nosuch")


def large():
    conn = connect()
    with conn.cursor() as cur:
        cur.execute(LARGE)
        rows = cur.fetchall()
    expect((len(rows), set(rows)), (10000, {("x" * 1000,)}))
    conn.close()


def reconnect():
    conn = connect()
    expect(one(conn, "select 1"), (1,))
    restart()
    refused(lambda: one(conn, "select 1"), psycopg2.OperationalError, "")
    expect(conn.closed != 0, True)
    conn = connect()
    expect(one(conn, "select 1"), (1,))
    conn.close()


report(psycopg2.__version__.split()[0], connect=connects, settings=settings, parameters=parameters, prepared=prepared,
       copy=copy, notify=notify, cancel=cancel, errors=errors, large=large, reconnect=reconnect)
