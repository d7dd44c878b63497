"""psycopg 3 against pghandoff."""
import datetime
import threading

import psycopg
from checks import LARGE, LINES, ROUTE, RUN_DIR, SLEEPING, TEXT, expect, poll, refused, report, restart


def connect(**more):
    return psycopg.connect(host=RUN_DIR, dbname=ROUTE, user="app", autocommit=True, **more)


def connects():
    with psycopg.connect(host=RUN_DIR, dbname=ROUTE, user="app") as conn:
        expect(conn.execute("select current_user").fetchone(), ("app",))
        expect(str(conn.info.server_version)[:2], conn.execute("show server_version_num").fetchone()[0][:2])


def settings():
    with connect(application_name="checks", options="-c work_mem=5MB -c TimeZone=Asia/Tokyo") as conn:
        for name, value in ("application_name", "checks"), ("work_mem", "5MB"), ("TimeZone", "Asia/Tokyo"):
            expect(conn.execute(f"show {name}").fetchone()[0], value)
        expect(conn.info.parameter_status("TimeZone"), "Asia/Tokyo")


def parameters():
    values = (42, TEXT, None, datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.timezone.utc), b"\0\1\xff", [1, 2, 3])
    query = "select %s::int, %s::text, %s::text, %s::timestamptz, %s::bytea, %s::int[]"
    with connect() as conn:
        expect(conn.execute(query, values).fetchone(), values)
        expect(conn.execute(query, values, binary=True).fetchone(), values)


def prepared():
    with connect() as conn:
        for i in range(100):
            expect(conn.execute("select %s::int + 1", (i,), prepare=True).fetchone(), (i + 1,))
        expect(conn.execute("select count(*) from pg_prepared_statements").fetchone(), (1,))


def copy():
    with connect() as conn, conn.cursor() as cur:
        cur.execute("create temp table copied (a int, b text)")
        with cur.copy("copy copied from stdin") as data:
            data.write("\n".join(LINES) + "\n")
        with cur.copy("copy copied to stdout") as data:
            expect(b"".join(data).decode().splitlines(), LINES)
        expect(cur.execute("select count(*) from copied").fetchone(), (len(LINES),))


def notify():
    with connect() as listener, connect() as sender:
        listener.execute("listen checks_psycopg3")
        sender.execute("select pg_notify('checks_psycopg3', %s)", (TEXT,))
        notice = next(listener.notifies())
        expect((notice.payload, notice.pid), (TEXT, sender.info.backend_pid))


def cancel():
    with connect() as conn, connect() as watcher:
        def stop():
            poll(lambda: watcher.execute(SLEEPING.format(conn.info.backend_pid)).fetchone()[0])
            conn.cancel()
        thread = threading.Thread(target=stop)
        thread.start()
        refused(lambda: conn.execute("select pg_sleep(60)"), psycopg.errors.QueryCanceled, "57014")
        thread.join()
        expect(conn.execute("select 1").fetchone(), (1,))


def errors():
    with connect() as conn:
        conn.execute("create temp table once (a int constraint only_once unique)")
        conn.execute("insert into once values (1)")
        e = refused(lambda: conn.execute("insert into once values (1)"), psycopg.errors.UniqueViolation, "23505")
        expect(e.diag.constraint_name, "only_once")
    refused(lambda: psycopg.connect(host=RUN_DIR, dbname="nosuch", user="app"), psycopg.OperationalError, "nosuch")


def large():
    with connect() as conn:
        rows = conn.execute(LARGE).fetchall()
        expect((len(rows), set(rows)), (10000, {("x" * 1000,)}))


def reconnect():
    conn = connect()
    expect(conn.execute("select 1").fetchone(), (1,))
    restart()
    refused(lambda: conn.execute("select 1"), psycopg.OperationalError, "")
    expect(conn.closed, True)
    with connect() as conn:
        expect(conn.execute("select 1").fetchone(), (1,))


report(psycopg.__version__, connect=connects, settings=settings, parameters=parameters, prepared=prepared, copy=copy,
       notify=notify, cancel=cancel, errors=errors, large=large, reconnect=reconnect)
