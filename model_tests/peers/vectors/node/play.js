// Plays conformance vectors to a broker, with nothing but Node's own modules.
//
//   node play.js FILE BROKER NAME_SERVER BROKER_NAME CLUSTER HAS [ONLY]
//
// HAS is what the broker has, ONLY the ids that are played, each with commas between them. The page beside the vectors
// tells what steps and patterns mean. A line for each vector; the exit code is 0 when none failed. What differs from a
// vector is thrown, and so are bytes that cannot be read.
'use strict';
const fs = require('node:fs');
const net = require('node:net');
const {setTimeout: sleep} = require('node:timers/promises');

const BESIDE = 16, AFTER_MS = 250;
const LANGUAGES = 'JAVA CPP DOTNET PYTHON DELPHI ERLANG RUBY OTHER HTTP GO PHP OMS RUST'.split(' ');
const [FILE, BROKER, NAME_SERVER, BROKER_NAME, CLUSTER, HAS, ONLY] = process.argv.slice(2);

// -- what a broker sends

class Reader {
  constructor(bytes) { this.bytes = bytes; this.at = 0; }
  take(size) {
    if (size < 0 || this.at + size > this.bytes.length) throw new Error('bytes that end too early');
    return this.bytes.subarray(this.at, this.at += size);
  }
  i8() { return this.take(1).readUInt8(); }
  i16() { return this.take(2).readInt16BE(); }
  i32() { return this.take(4).readInt32BE(); }
  i64() { return this.take(8).readBigInt64BE(); }
  text(size) { return this.take(size).toString(); }
  host(isV6) {
    const bytes = [...this.take(isV6 ? 16 : 4)];
    return `${isV6 ? Buffer.from(bytes).toString('hex') : bytes.join('.')}:${this.i32()}`;
  }
  get isOver() { return this.at >= this.bytes.length; }
}

function decode(frame) {
  const reader = new Reader(frame), mark = reader.i32(), head = new Reader(reader.take(mark & 0xFFFFFF));
  const command = {at: Date.now(), body: frame.subarray(reader.at)};
  if (mark >>> 24 === 0) {
    const header = JSON.parse(head.bytes);
    const fields = Object.values(header.extFields ?? {});
    const isGood = [header.code, header.flag, header.opaque].every(each => each === undefined || Number.isInteger(each))
      && typeof (header.remark ?? '') === 'string' && !Array.isArray(header.extFields)
      && fields.every(each => typeof each === 'string');
    if (!isGood) throw new Error('a header that is none');
    return {code: 0, flag: 0, opaque: 0, ...header, ...command, extFields: header.extFields ?? {}};
  }
  Object.assign(command, {code: head.i16(), language: LANGUAGES[head.i8()], version: head.i16(), opaque: head.i32()});
  Object.assign(command, {flag: head.i32(), remark: head.text(head.i32()), extFields: {}});
  const fields = new Reader(head.take(head.i32()));
  while (!fields.isOver) {
    const name = fields.text(fields.i16());
    command.extFields[name] = fields.text(fields.i32());
  }
  return command;
}

function crc32(bytes) {
  let crc = -1;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = crc >>> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
  }
  return ~crc & 0x7FFFFFFF;
}

function record(reader) {
  const begin = reader.at, size = reader.i32(), magic = reader.take(4).toString('hex').toUpperCase();
  const one = {magic, bodyCRC: reader.i32(), queueId: reader.i32(), flag: reader.i32(), queueOffset: reader.i64()};
  Object.assign(one, {physicalOffset: reader.i64(), sysFlag: reader.i32(), bornTimestamp: reader.i64()});
  one.bornHost = reader.host(one.sysFlag & 0x10);
  one.storeTimestamp = reader.i64();
  one.storeHost = reader.host(one.sysFlag & 0x20);
  Object.assign(one, {reconsumeTimes: reader.i32(), preparedTransactionOffset: reader.i64(), properties: {}});
  const body = reader.take(reader.i32());
  Object.assign(one, {body: body.toString(), bodyHex: body.toString('hex'), bodyLength: body.length});
  one.bodyCRCok = crc32(body) === one.bodyCRC;
  // From 5.0 a topic's length may take two bytes.
  one.topic = reader.text(magic === 'DAA320AB' ? reader.i16() : reader.i8());
  for (const part of reader.text(reader.i16()).split('\x02')) {
    const cut = part.indexOf('\x01');
    if (cut >= 0) one.properties[part.slice(0, cut)] = part.slice(cut + 1);
  }
  if (reader.at - begin !== size) throw new Error('a record of another size');
  return one;
}

function records(body) {
  const reader = new Reader(body), found = [];
  while (!reader.isOver) found.push(record(reader));
  return found;
}

// A value and what is in it, by their places; lists in the order of what is in them.
function put(found, place, value, inOrder = false) {
  if (value === null || typeof value !== 'object') {
    found[place] = String(value);
    return found;
  }
  const texts = each => Object.entries(put({}, '', each)).sort().map(([, text]) => text).join(' ');
  const values = inOrder || !Array.isArray(value) ? value : [...value].sort((a, b) => (texts(a) < texts(b) ? -1 : 1));
  found[`${place}.#`] = String(Object.keys(values).length);
  for (const [name, each] of Object.entries(values)) put(found, `${place}.${name}`, each);
  return found;
}

// What an answer is, by its places; its body as records or JSON where it is.
function shown(command) {
  const {code, flag, language, remark, extFields, body} = command;
  const found = {code: String(code), flag: String(flag), language, hasRemark: String(Boolean(remark))};
  put(found, 'extFields', extFields);
  if (/[0-9A-F]{16}$/i.test(extFields.msgId)) found.place = String(BigInt(`0x${extFields.msgId.slice(-16)}`));
  if (body.length === 0) return {...found, empty: 'true'};
  try { return put(found, 'records', records(body), true); } catch { found.hex = body.toString('hex'); }
  try { put(found, 'json', JSON.parse(body.toString().replace(/([{,]\s*)(-?\d+)\s*:/g, '$1"$2":'))); } catch { /* hex */ }
  return found;
}

function fits(wanted, text) {
  if (wanted === '<address>') return /^\d{1,3}(\.\d{1,3}){3}:\d+$/.test(text);
  const ids = text?.split(',') ?? [];
  const areIds = ids.every(id => /^([0-9A-F]{32}|[0-9A-F]{56})$/i.test(id));
  return text !== undefined && (text === wanted || wanted === '<any>' || areIds && wanted === `<ids ${ids.length}>`);
}

function fit(of, pattern, found) {
  for (const [place, wanted] of Object.entries(pattern)) {
    if (!fits(wanted, found[place])) throw new Error(`${of}, ${place}: expected ${wanted}, got ${found[place]}`);
  }
}

// -- playing

class Line {
  constructor(address) {
    Object.assign(this, {waited: new Set(), answers: new Map(), pushes: [], isAny: false, isClosed: false, waiting: () => {}});
    const cut = address.lastIndexOf(':');
    let came = Buffer.alloc(0);
    this.socket = net.connect({host: address.slice(0, cut), port: Number(address.slice(cut + 1)), noDelay: true});
    this.socket.on('error', () => {}).on('close', () => this.close()).on('data', part => {
      came = Buffer.concat([came, part]);
      while (came.length >= 4 && !this.isClosed) {
        const size = came.readUInt32BE();
        if (came.length < 4 + size) return;
        try { this.keep(decode(came.subarray(4, 4 + size))); } catch { this.close(); }
        came = came.subarray(4 + size);
      }
    });
  }
  close() {
    this.isClosed = true;
    this.waiting();
    this.socket.destroy();
  }
  keep(command) {
    if (!(command.flag & 1)) this.pushes.push(command);
    else if (!this.waited.delete(command.opaque) && (!this.isAny || this.answers.has(command.opaque))) {
      this.fault = `an answer to ${command.opaque}, which nobody asked or was answered`;
    } else this.answers.set(command.opaque, command);
    this.waiting();
  }
  // The answer to a request; nothing when the connection is closed or the time over.
  async wait(opaque, withinMs) {
    for (const end = Date.now() + withinMs; !this.answers.has(opaque) && !this.isClosed && Date.now() < end;) {
      const timer = new AbortController();
      this.waiting = () => timer.abort();
      await sleep(end - Date.now(), null, {signal: timer.signal}).catch(() => {});
    }
    return this.answers.get(opaque);
  }
}

function content(pieces) {
  return Buffer.concat(pieces.map(({text = '', hex = '', times = 1}) => {
    const one = Buffer.concat([Buffer.from(text), Buffer.from(hex, 'hex')]);
    return Buffer.concat(Array(times).fill(one));
  }));
}

class Playing {
  constructor() {
    this.names = {brokerName: BROKER_NAME, cluster: CLUSTER};
    this.lines = new Map();
    this.asked = {};
  }
  send(step) {
    if (!this.lines.has(step.conn)) this.lines.set(step.conn, new Line(step.conn.startsWith('ns') ? NAME_SERVER : BROKER));
    const line = this.lines.get(step.conn), opaque = step.opaque;
    line.waited.add(opaque);
    line.answers.delete(opaque);
    line.isAny ||= 'raw' in step;
    let frame = Buffer.from(step.raw ?? '', 'hex');
    if (step.header) {
      const header = content([step.header]), body = content(step.body), head = Buffer.alloc(8);
      head.writeUInt32BE(4 + header.length + body.length);
      head.writeUInt32BE((step.header.kind ?? 0) << 24 | header.length, 4);
      frame = Buffer.concat([head, header, body]);
    }
    line.socket.write(frame);
    return {line, opaque, at: Date.now()};
  }
  async answer(step) {
    const {line, opaque, at} = this.asked[step.answer], command = await line.wait(opaque, step.withinMs);
    const found = command ? shown(command) : {[line.isClosed ? 'closed' : 'silence']: 'true'};
    const heldMs = command ? command.at - at : 0;
    if (command && 'notAfterMs' in step && (heldMs < step.notBeforeMs - 2 || heldMs > step.notAfterMs)) {
      throw new Error(`${step.answer}: expected after ${step.notBeforeMs} to ${step.notAfterMs} ms, came after ${heldMs}`);
    }
    fit(step.answer, step.expect ?? {}, found);
    for (const [name, place] of Object.entries(step.save ?? {})) this.names[name] = found[place];
  }
  async until(step) {
    for (const end = Date.now() + step.limitMs; ; await sleep(10)) {
      const command = await this.send(step).line.wait(step.opaque, end - Date.now());
      if (!command) throw new Error(`${step.field} does not come to ${step.until}`);
      if (Number(command.extFields[step.field] ?? -1) >= step.until) return;
    }
  }
  async pushes(step) {
    await sleep(step.afterMs);
    const all = [...this.lines.keys()].sort().flatMap(name => this.lines.get(name).pushes.map(push => [name, push]));
    const found = {'#': String(all.length)};
    all.forEach(([conn, {code, flag, extFields}], number) => put(found, String(number), {conn, code, flag, extFields}));
    fit('pushes', step.pushes, found);
  }
  async do(step) {
    if ('ask' in step) this.asked[step.ask] = this.send(step);
    else if ('answer' in step) await this.answer(step);
    else if ('after' in step) await sleep(Math.max(0, this.asked[step.after].at + step.ms - Date.now()));
    else if ('sleepMs' in step) await sleep(step.sleepMs);
    else if ('until' in step) await this.until(step);
    else if ('pushes' in step) await this.pushes(step);
    else if ('close' in step) {
      this.lines.get(step.close).close();
      this.lines.delete(step.close);
    } else throw new Error(`a step that nobody knows: ${JSON.stringify(step)}`);
  }
  fill(text) {
    return text.replace(/\$\{(\w+)([+-]\d+)?\}/g, (_all, name, more) =>
      (more ? String(Number(this.names[name]) + Number(more)) : this.names[name]));
  }
  async play(vector) {
    const run = Math.floor(Math.random() * 36 ** 6).toString(36).padStart(6, '0');
    try {
      for (const step of vector.steps) {
        const text = JSON.stringify(step).replaceAll('${run}', run).replaceAll('247b72756e7d', Buffer.from(run).toString('hex'));
        await this.do(JSON.parse(this.fill(text)));
      }
      for (const line of this.lines.values()) {
        line.socket.end();
        await line.wait(undefined, AFTER_MS);
      }
      return [...this.lines.values()].map(line => line.fault).find(Boolean);
    } catch (error) {
      return error.message;
    } finally {
      for (const line of this.lines.values()) line.close();
    }
  }
}

async function main() {
  const counts = {PASS: 0, FAIL: 0, SKIPPED: 0};
  const tell = (outcome, vector, why = '') => {
    counts[outcome]++;
    console.log(`${outcome} ${vector.id} ${why}`.trim());
  };
  const vectors = fs.readFileSync(FILE, 'utf8').trim().split('\n').map(line => JSON.parse(line))
    .filter(vector => !ONLY || ONLY.split(',').includes(vector.id));
  const has = new Set(HAS.split(','));
  const workers = Array.from({length: BESIDE}, async () => {
    for (let vector = vectors.shift(); vector; vector = vectors.shift()) {
      const unfit = vector.when.filter(name => has.has(name.replace('!', '')) === name.startsWith('!'));
      if (unfit.length) tell('SKIPPED', vector, `the broker is not: ${unfit.join(', ')}`);
      else {
        const said = await new Playing().play(vector);
        tell(said ? 'FAIL' : 'PASS', vector, said);
      }
    }
  });
  await Promise.all(workers);
  console.log(`${counts.PASS} passed, ${counts.FAIL} failed, ${counts.SKIPPED} skipped`);
  process.exit(counts.FAIL || !counts.PASS ? 1 : 0);
}

main();
