// postgres.js against pghandoff.
'use strict'
const postgres = require('postgres')
const { pipeline } = require('stream/promises')
const { Readable } = require('stream')
const { RUN_DIR, ROUTE, TEXT, LARGE, LINES, Lacks, Handed, descriptors, expect, refused, poll, restart, report } = require('./checks')

const handed = descriptors.length > 0
const open = []

// shortest is the least that a pool has to be told.
function shortest () {
  return handed
    ? postgres({ socket: () => new Handed(), host: RUN_DIR, database: ROUTE, username: 'app' })
    : postgres({ host: RUN_DIR, database: ROUTE, username: 'app' })
}

// client is a pool of at most max connections, ended after the check.
function client (max = 1, more = {}) {
  const one = postgres({ ...(handed && { socket: () => new Handed() }), host: RUN_DIR, database: ROUTE, username: 'app', max, ...more })
  open.push(one)
  return one
}

const check = action => async () => {
  try {
    await action()
  } finally {
    while (open.length) await open.pop().end({ timeout: 1 })
  }
}

report('postgres', {
  connect: check(async () => {
    const sql = shortest()
    open.push(sql)
    expect((await sql`select current_user`)[0].current_user, 'app')
  }),
  settings: check(async () => {
    const given = { application_name: 'checks', work_mem: '5MB', TimeZone: 'Asia/Tokyo' }
    const sql = client(1, { connection: given })
    for (const [name, want] of Object.entries(given)) expect(Object.values((await sql.unsafe(`show ${name}`))[0]), [want])
    expect(sql.parameters.TimeZone, 'Asia/Tokyo')
  }),
  parameters: check(async () => {
    const values = [42, TEXT, null, new Date('2026-01-02T03:04:05.006Z'), Buffer.from([0, 1, 255]), [1, 2, 3]]
    const [a, b, c, d, e, f] = values
    const rows = await client()`select ${a}::int, ${b}::text, ${c}::text, ${d}::timestamptz, ${e}::bytea, ${f}::int[]`.values()
    expect(rows[0], values)
  }),
  prepared: check(async () => {
    const sql = client() // each query is prepared under a name and kept
    for (let i = 0; i < 100; i++) expect((await sql`select ${i}::int + 1 as sum`)[0].sum, i + 1)
    expect((await sql`select count(*)::int from pg_prepared_statements where statement like '%+ 1 as sum'`)[0].count, 1)
  }),
  copy: check(async () => {
    const sql = client()
    await sql`create temp table copied (a int, b text)`
    await pipeline(Readable.from([LINES]), await sql`copy copied from stdin`.writable())
    const out = []
    for await (const data of await sql`copy copied to stdout`.readable()) out.push(data)
    expect(Buffer.concat(out).toString(), LINES)
    expect((await sql`select count(*)::int from copied`)[0].count, 1000)
  }),
  notify: check(async () => {
    const sql = client() // a listener gets a connection of its own
    let came
    const payload = new Promise(resolve => { came = resolve })
    await sql.listen('checks_postgres', came)
    await sql.notify('checks_postgres', TEXT)
    expect(await payload, TEXT)
  }),
  cancel: check(async () => {
    const sql = client(2) // handed over, the request takes another descriptor
    const query = sql`select pg_sleep(60)`
    const ended = refused(query, postgres.PostgresError, '57014')
    await poll(async () => (await sql`select count(*)::int from pg_stat_activity where usename = current_user and wait_event = 'PgSleep' and datname = current_database()`)[0].count)
    query.cancel()
    await ended
    expect((await sql`select 1 as one`)[0].one, 1)
  }),
  errors: check(async () => {
    const sql = client()
    await sql`create temp table once (a int constraint only_once unique)`
    await sql`insert into once values (1)`
    const e = await refused(sql`insert into once values (1)`, postgres.PostgresError, '23505')
    expect(e.constraint_name, 'only_once')
    await refused(client(1, { database: 'nosuch' })`select 1`, postgres.PostgresError, '3D000')
  }),
  large: check(async () => {
    const rows = await client().unsafe(LARGE)
    expect([rows.length, new Set(rows.map(r => r.line))], [10000, new Set(['x'.repeat(1000)])])
  }),
  reconnect: check(async () => {
    if (handed) throw new Lacks('its descriptors come with the process: start a new one')
    const sql = client()
    expect((await sql`select 1 as one`)[0].one, 1)
    await restart()
    // The pool notices the end of its connection only when Node.js has read it.
    await poll(() => sql`select 1 as one`.then(rows => rows[0].one, () => false))
  })
})
