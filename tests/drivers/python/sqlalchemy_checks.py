"""SQLAlchemy's pool, on psycopg2 (the one that version 1.4 knows), against pghandoff."""
import datetime
import io
import threading

import sqlalchemy
from checks import LARGE, LINES, ROUTE, RUN_DIR, SLEEPING, TEXT, expect, poll, refused, report, restart
from sqlalchemy import create_engine, exc, text


POOL = create_engine(f"postgresql+psycopg2://app@/{ROUTE}?host={RUN_DIR}", pool_pre_ping=True)


def autocommit():
    return POOL.connect().execution_options(isolation_level="AUTOCOMMIT")


def connects():
    with POOL.connect() as conn:
        expect(conn.scalar(text("select current_user")), "app")
        expect(conn.dialect.server_version_info[0], int(conn.scalar(text("show server_version_num"))) // 10000)


def settings():
    given = {"application_name": "checks", "options": "-c work_mem=5MB -c TimeZone=Asia/Tokyo"}
    own = create_engine(POOL.url, connect_args=given)
    with own.connect() as conn:
        for name, value in ("application_name", "checks"), ("work_mem", "5MB"), ("TimeZone", "Asia/Tokyo"):
            expect(conn.scalar(text(f"show {name}")), value)
    own.dispose()


def parameters():
    values = (42, TEXT, None, datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.timezone.utc), b"\0\1\xff", [1, 2, 3])
    query = "select (:a)::int, (:b)::text, (:c)::text, (:d)::timestamptz, (:e)::bytea, (:f)::int[]"
    with POOL.connect() as conn:
        got = conn.execute(text(query), dict(zip("abcdef", values))).one()
        expect((*got[:4], bytes(got[4]), got[5]), values)


def prepared():
    with POOL.connect() as conn:
        conn.execute(text("prepare plus_one (int) as select $1 + 1"))
        for i in range(100):
            expect(conn.scalar(text("execute plus_one (:i)"), {"i": i}), i + 1)
        conn.execute(text("deallocate plus_one"))
    return "by SQL's PREPARE: psycopg2 sends bound values as text of the query"


def copy():
    with POOL.begin() as conn, conn.connection.cursor() as cur:
        cur.execute("create temp table copied (a int, b text) on commit drop")
        cur.copy_expert("copy copied from stdin", io.StringIO("\n".join(LINES) + "\n"))
        out = io.StringIO()
        cur.copy_expert("copy copied to stdout", out)
        expect(out.getvalue().splitlines(), LINES)


def notify():
    with autocommit() as listener, autocommit() as sender:
        listener.execute(text("listen checks_sqlalchemy"))
        sender.execute(text("select pg_notify('checks_sqlalchemy', :p)"), {"p": TEXT})
        raw = listener.connection.dbapi_connection
        poll(lambda: raw.poll() or raw.notifies)
        expect(raw.notifies.pop().payload, TEXT)
        listener.execute(text("unlisten *"))


def cancel():
    with autocommit() as conn, autocommit() as watcher:
        raw = conn.connection.dbapi_connection

        def stop():
            poll(lambda: watcher.scalar(text(SLEEPING.format(raw.info.backend_pid))))
            raw.cancel()
        thread = threading.Thread(target=stop)
        thread.start()
        refused(lambda: conn.execute(text("select pg_sleep(60)")), exc.OperationalError, "canceling statement")
        thread.join()
        expect(conn.scalar(text("select 1")), 1)


def errors():
    with POOL.begin() as conn:
        conn.execute(text("create temp table once (a int constraint only_once unique)"))
        conn.execute(text("insert into once values (1)"))
        e = refused(lambda: conn.execute(text("insert into once values (1)")), exc.IntegrityError, "only_once")
        expect(e.orig.pgcode, "23505")
    nosuch = create_engine(f"postgresql+psycopg2://app@/nosuch?host={RUN_DIR}")
    refused(nosuch.connect, exc.OperationalError, "nosuch")


def large():
    with POOL.connect() as conn:
        rows = conn.execute(text(LARGE)).all()
        expect((len(rows), set(rows)), (10000, {("x" * 1000,)}))


def reconnect():
    with POOL.connect() as conn:
        expect(conn.scalar(text("select 1")), 1)
    restart()
    for _ in range(2):  # pool_pre_ping finds that its connections have ended
        with POOL.connect() as conn:
            expect(conn.scalar(text("select 1")), 1)


report(sqlalchemy.__version__, connect=connects, settings=settings, parameters=parameters, prepared=prepared, copy=copy,
       notify=notify, cancel=cancel, errors=errors, large=large, reconnect=reconnect)
