// What an order costs. Each price that was given is a line of a file: the first answer to a key is the answer for good.
const crypto = require('node:crypto'), fs = require('node:fs'), http = require('node:http')

const CENTS = { tea: 450, coffee: 620 }
const SECRET = Buffer.from(process.env.ORDERS_SECRET.replace('whsec_', ''), 'base64')

const file = fs.openSync(process.env.PRICE_FILE || 'prices.ndjson', 'a+')
const lines = fs.readFileSync(file, 'utf8').split('\n')
const torn = Buffer.byteLength(lines.pop()) // of a machine that went down in the middle of a line
fs.ftruncateSync(file, fs.fstatSync(file).size - torn)
fs.fsyncSync(file)
const given = new Map(lines.map(JSON.parse).map(line => [line.key, line.answer]))

function isSigned(headers, body) {
  const { 'webhook-id': id, 'webhook-timestamp': time, 'webhook-signature': signatures = '' } = headers
  if (!(Math.abs(Date.now() / 1000 - time) <= 300)) return false
  const wanted = Buffer.from(crypto.createHmac('sha256', SECRET).update(`${id}.${time}.`).update(body).digest('base64'))
  const found = signatures.split(' ').map(one => Buffer.from(one.replace(/^v1,/, '')))
  return found.some(one => one.length === wanted.length && crypto.timingSafeEqual(one, wanted))
}

function price({ idempotency_key: key, payload }) {
  if (given.has(key)) return [200, given.get(key)]
  if (!Object.hasOwn(CENTS, payload?.item) || !(payload.quantity > 0)) return [422, { title: 'no such order' }]
  const answer = { cents: CENTS[payload.item] * payload.quantity }
  fs.writeSync(file, JSON.stringify({ key, answer }) + '\n')
  fs.fsyncSync(file) // the effect is durable before it is answered
  given.set(key, answer)
  return [200, answer]
}

async function serve(request, response) {
  const body = Buffer.concat(await request.toArray())
  const [status, answer] = isSigned(request.headers, body) ? price(JSON.parse(body)) : [401, { title: 'not signed' }]
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(answer))
}

http.createServer((request, response) => serve(request, response).catch(() => response.destroy()))
  .listen(process.env.PRICE_PORT || 7001, '127.0.0.1')
