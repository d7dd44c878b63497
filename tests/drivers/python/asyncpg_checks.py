"""asyncpg against pghandoff."""
import asyncio
import datetime
import io

import asyncpg
from checks import LARGE, LINES, ROUTE, RUN_DIR, SLEEPING, TEXT, expect, report, restart


async def connect(**more):
    return await asyncpg.connect(host=RUN_DIR, database=ROUTE, user="app", **more)


async def refused(action, error, state):
    try:
        await action
    except error as e:
        expect(e.sqlstate, state)
        return e
    raise AssertionError(f"no {error.__name__}")


async def connects():
    conn = await asyncpg.connect(host=RUN_DIR, database=ROUTE, user="app")
    expect(await conn.fetchval("select current_user"), "app")
    expect(str(conn.get_server_version().major), (await conn.fetchval("show server_version_num"))[:2])
    await conn.close()


async def settings():
    given = {"application_name": "checks", "work_mem": "5MB", "TimeZone": "Asia/Tokyo"}
    conn = await connect(server_settings=given)
    for name, value in given.items():
        expect(await conn.fetchval(f"show {name}"), value)
    expect(conn.get_settings().TimeZone, "Asia/Tokyo")
    await conn.close()


async def parameters():
    values = (42, TEXT, None, datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.timezone.utc), b"\0\1\xff", [1, 2, 3])
    conn = await connect()
    query = "select $1::int, $2::text, $3::text, $4::timestamptz, $5::bytea, $6::int[]"
    expect(tuple(await conn.fetchrow(query, *values)), values)
    await conn.close()


async def prepared():
    conn = await connect()
    statement = await conn.prepare("select $1::int + 1")
    for i in range(100):
        expect(await statement.fetchval(i), i + 1)
    expect(await conn.fetchval("select count(*) > 0 from pg_prepared_statements where statement like '%+ 1'"), True)
    await conn.close()


async def copy():
    conn = await connect()
    await conn.execute("create temp table copied (a int, b text)")
    data = io.BytesIO(("\n".join(LINES) + "\n").encode())
    expect(await conn.copy_to_table("copied", source=data), f"COPY {len(LINES)}")
    out = io.BytesIO()
    await conn.copy_from_table("copied", output=out)
    expect(out.getvalue().decode().splitlines(), LINES)
    await conn.close()


async def notify():
    listener, sender = await connect(), await connect()
    came = asyncio.get_running_loop().create_future()
    await listener.add_listener("checks_asyncpg", lambda _, pid, channel, payload: came.set_result((pid, payload)))
    await sender.execute("select pg_notify('checks_asyncpg', $1)", TEXT)
    expect(await came, (sender.get_server_pid(), TEXT))
    await listener.close()
    await sender.close()


async def sleeping(watcher, pid, want):
    while bool(await watcher.fetchval(SLEEPING.format(pid))) != want:
        await asyncio.sleep(0.01)


async def cancel():
    conn, watcher = await connect(), await connect()
    pid = conn.get_server_pid()
    query = asyncio.ensure_future(conn.execute("select pg_sleep(60)"))
    await sleeping(watcher, pid, True)
    query.cancel()
    try:
        await query
        raise AssertionError("the query ended by itself")
    except asyncio.CancelledError:
        pass
    expect(await conn.fetchval("select pg_backend_pid()"), pid)
    await sleeping(watcher, pid, False)
    await conn.close()
    await watcher.close()
    return "by cancelling the task: it sends a cancel request, and keeps the server's 57014 to itself"


async def errors():
    conn = await connect()
    await conn.execute("create temp table once (a int constraint only_once unique); insert into once values (1)")
    e = await refused(conn.execute("insert into once values (1)"), asyncpg.UniqueViolationError, "23505")
    expect(e.constraint_name, "only_once")
    await conn.close()
    nosuch = asyncpg.connect(host=RUN_DIR, database="nosuch", user="app")
    await refused(nosuch, asyncpg.InvalidCatalogNameError, "3D000")


async def large():
    conn = await connect()
    rows = await conn.fetch(LARGE)
    expect((len(rows), {row[0] for row in rows}), (10000, {"x" * 1000}))
    await conn.close()


async def reconnect():
    conn = await connect()
    expect(await conn.fetchval("select 1"), 1)
    restart()
    try:
        await conn.fetchval("select 1")
        raise AssertionError("the old connection works")
    except (asyncpg.PostgresConnectionError, asyncpg.AdminShutdownError, asyncpg.InterfaceError, ConnectionError):
        pass
    conn = await connect()
    expect(await conn.fetchval("select 1"), 1)
    await conn.close()


def run(check):
    return lambda: asyncio.run(asyncio.wait_for(check(), 30))


report(asyncpg.__version__, connect=run(connects), settings=run(settings), parameters=run(parameters),
       prepared=run(prepared), copy=run(copy), notify=run(notify), cancel=run(cancel), errors=run(errors),
       large=run(large), reconnect=run(reconnect))
