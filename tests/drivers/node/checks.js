// What the scripts for Node.js have in common: where to connect, and how to report (see tests/drivers_test.go).
'use strict'
const fs = require('fs')
const net = require('net')
const { deepStrictEqual } = require('assert')

const RUN_DIR = process.env.RUN_DIR
const ROUTE = process.env.ROUTE
const TEXT = "Käse 'n' \\ ☕"
const LARGE = "select repeat('x', 1000) as line from generate_series(1, 10000)"
const LINES = Array.from({ length: 1000 }, (_, i) => `${i}\tline ${i}\n`).join('')

class Lacks extends Error {}

// The descriptors of "pghandoff exec", one a connection.
const descriptors = (process.env.PGHANDOFF_FDS || '').split(',').filter(Boolean).map(Number)

// Handed is a descriptor of "pghandoff exec" as the socket that drivers want: they call connect on it, or wait for it.
class Handed extends net.Socket {
  constructor (fd = descriptors.shift()) {
    super({ fd, readable: true, writable: true })
  }

  connect () {
    process.nextTick(() => this.emit('connect'))
    return this
  }
}

// refused awaits an action that must fail with the SQLSTATE.
async function refused (action, type, code) {
  try {
    await action
  } catch (e) {
    if (!(e instanceof type) || (code && e.code !== code)) throw new Error(`${e.name} ${e.code}: ${e.message}`)
    return e
  }
  throw new Error(`no error ${code}`)
}

// poll waits until good() resolves to something true.
async function poll (good) {
  for (const end = Date.now() + 20000; !(await good());) {
    if (Date.now() > end) throw new Error('waited 20 s in vain')
    await new Promise(resolve => setTimeout(resolve, 10))
  }
}

// restart returns when the server has been restarted.
async function restart () {
  console.log('restart?')
  await new Promise(resolve => process.stdin.once('data', resolve))
  process.stdin.pause()
}

// report runs the checks and prints one line for each. No driver may keep the process alive after that.
async function report (driver, checks) {
  console.log(`version: ${JSON.parse(fs.readFileSync(`${__dirname}/node_modules/${driver}/package.json`)).version}`)
  for (const [name, check] of Object.entries(checks)) {
    try {
      const remark = await check()
      console.log(remark ? `${name}: ok, ${remark}` : `${name}: ok`)
    } catch (e) {
      console.log(`${name}: ${e instanceof Lacks ? 'none, ' : ''}${e.message.replace(/\s+/g, ' ')}`)
      if (!(e instanceof Lacks)) console.error(e.stack)
    }
  }
  process.exit()
}

module.exports = { RUN_DIR, ROUTE, TEXT, LARGE, LINES, Lacks, Handed, descriptors, expect: deepStrictEqual, refused, poll, restart, report }
