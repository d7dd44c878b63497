// node-postgres against pghandoff.
'use strict'
const pg = require('pg')
const { from: copyFrom, to: copyTo } = require('pg-copy-streams')
const { pipeline } = require('stream/promises')
const { Readable } = require('stream')
const { RUN_DIR, ROUTE, TEXT, LARGE, LINES, Lacks, Handed, descriptors, expect, refused, poll, restart, report } = require('./checks')

const handed = descriptors.length > 0

// shortest is the least that a client has to be told.
function shortest () {
  return handed
    ? new pg.Client({ stream: () => new Handed(), host: RUN_DIR, database: ROUTE, user: 'app' })
    : new pg.Client({ host: RUN_DIR, database: ROUTE, user: 'app' })
}

function client (more) {
  return new pg.Client({ ...(handed && { stream: () => new Handed() }), host: RUN_DIR, database: ROUTE, user: 'app', ...more })
}

// using gives the action as many clients as it takes, and ends them.
async function using (action, more) {
  const clients = Array.from({ length: action.length }, () => client(more))
  for (const c of clients) await c.connect()
  const remark = await action(...clients)
  for (const c of clients) await c.end()
  return remark
}

const value = async (c, sql, values) => Object.values((await c.query(sql, values)).rows[0])[0]
const sleeping = pid => `select count(*)::int from pg_stat_activity where pid = ${pid} and wait_event = 'PgSleep'`
const check = (action, more) => () => using(action, more)

report('pg', {
  connect: async () => {
    const c = shortest()
    await c.connect()
    expect(await value(c, 'select current_user'), 'app')
    await c.end()
  },
  settings: check(async c => {
    for (const [name, want] of [['application_name', 'checks'], ['work_mem', '5MB'], ['TimeZone', 'Asia/Tokyo']]) {
      expect(await value(c, `show ${name}`), want)
    }
  }, { application_name: 'checks', options: '-c work_mem=5MB -c TimeZone=Asia/Tokyo' }),
  parameters: check(async c => {
    const values = [42, TEXT, null, new Date('2026-01-02T03:04:05.006Z'), Buffer.from([0, 1, 255]), [1, 2, 3]]
    const sql = 'select $1::int, $2::text, $3::text, $4::timestamptz, $5::bytea, $6::int[]'
    expect((await c.query({ text: sql, values, rowMode: 'array' })).rows[0], values)
  }),
  prepared: check(async c => {
    for (let i = 0; i < 100; i++) {
      expect((await c.query({ name: 'plus-one', text: 'select $1::int + 1 as sum', values: [i] })).rows[0].sum, i + 1)
    }
    expect(await value(c, "select count(*)::int from pg_prepared_statements where name = 'plus-one'"), 1)
  }),
  copy: check(async c => {
    await c.query('create temp table copied (a int, b text)')
    await pipeline(Readable.from([LINES]), c.query(copyFrom('copy copied from stdin')))
    const out = []
    for await (const data of c.query(copyTo('copy copied to stdout'))) out.push(data)
    expect(Buffer.concat(out).toString(), LINES)
    expect(await value(c, 'select count(*)::int from copied'), 1000)
    return `with pg-copy-streams ${require('pg-copy-streams/package.json').version}`
  }),
  notify: check(async (listener, sender) => {
    const came = new Promise(resolve => listener.once('notification', resolve))
    await listener.query('listen checks_pg')
    await sender.query("select pg_notify('checks_pg', $1)", [TEXT])
    const { payload, processId } = await came
    expect([payload, processId], [TEXT, sender.processID])
  }),
  cancel: check(async (c, watcher) => {
    const query = new pg.Query('select pg_sleep(60)')
    const ended = new Promise((resolve, reject) => { query.once('end', resolve).once('error', reject) })
    c.query(query)
    await poll(() => value(watcher, sleeping(c.processID)))
    const canceller = new pg.Client({ host: RUN_DIR, database: ROUTE, user: 'app' }) // a cancel takes no lease
    canceller.cancel(c, query)
    await refused(ended, pg.DatabaseError, '57014')
    expect(await value(c, 'select 1'), 1)
  }),
  errors: check(async c => {
    await c.query('create temp table once (a int constraint only_once unique)')
    await c.query('insert into once values (1)')
    const e = await refused(c.query('insert into once values ($1)', [1]), pg.DatabaseError, '23505')
    expect(e.constraint, 'only_once')
    await refused(client({ database: 'nosuch' }).connect(), pg.DatabaseError, '3D000')
  }),
  large: check(async c => {
    const { rows } = await c.query(LARGE)
    expect([rows.length, new Set(rows.map(r => r.line))], [10000, new Set(['x'.repeat(1000)])])
  }),
  reconnect: async () => {
    if (handed) throw new Lacks('its descriptors come with the process: start a new one')
    const old = client()
    old.on('error', () => {}) // the end of an idle connection
    await old.connect()
    expect(await value(old, 'select 1'), 1)
    await restart()
    await refused(old.query('select 1'), Error)
    await using(async c => expect(await value(c, 'select 1'), 1))
  }
})
