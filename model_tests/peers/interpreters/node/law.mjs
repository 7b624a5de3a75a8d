// Runs the law of broker long polling from its JANI file: explores the law, and follows a program's steps for a unit
// test. What is in the file is told in docs/export.md. Leaves out every part of JANI that is not there.
//
// Expressions become JavaScript functions, which the engine compiles. Equal expressions are one node; a node that is
// large and used more than once, such as a guard, is a function that remembers its value in the present state.

import { readFileSync } from "node:fs";

export const VERSION = "1"; // of the files that this program reads
const INLINE_MAX = 16; // nodes of an expression that is written out wherever it is used
const FUNCTION_MAX = 400; // nodes of one function: what is longer is divided

const SIGNS = { "∧": "&&", "∨": "||", "=": "===", "≠": "!==", "<": "<", "≤": "<=", "+": "+", "-": "-" };

/** What an operator of two arguments joins, however it is nested. */
function joined(expression, op) {
  if (expression.op !== op) return [expression];
  return [...joined(expression.left, op), ...joined(expression.right, op)];
}

/** An expression with the file's operators. */
function text(expression) {
  const written = nested(expression);
  return written.startsWith("(") ? written.slice(1, -1) : written;
}

function nested(expression) {
  if (typeof expression !== "object") return String(expression);
  const { op } = expression;
  if (op === "∧" || op === "∨") return `(${joined(expression, op).map(nested).join(` ${op} `)})`;
  if (op === "¬") return `¬${nested(expression.exp)}`;
  if (op === "ite")
    return `(if ${nested(expression.if)} then ${nested(expression.then)} else ${nested(expression.else)})`;
  return `(${nested(expression.left)} ${op} ${nested(expression.right)})`;
}

/** Makes functions of expressions over one state, `s`, which is another whenever `now` is. */
class Compiler {
  constructor(places, constants) {
    Object.assign(this, { places, constants, nodes: [], known: new Map(), functions: [] });
  }

  /** The number of an expression's node, which is that of any other that says the same. */
  add(expression) {
    const node = this.node(expression);
    const key = `${node.op} ${node.kids ?? node.value}`;
    const known = this.known.get(key);
    if (known !== undefined) {
      this.nodes[known].uses += 1;
      return known;
    }
    node.uses = 1;
    node.size = 1 + (node.kids ?? []).reduce((sum, kid) => sum + this.nodes[kid].inlined, 0);
    node.inlined = node.size; // how many nodes are written where it is used
    if (node.size > FUNCTION_MAX) this.divide(node);
    this.known.set(key, this.nodes.length);
    this.nodes.push(node);
    return this.nodes.length - 1;
  }

  divide(node) {
    for (const kid of node.kids) {
      if (this.nodes[kid].size > INLINE_MAX) this.nodes[kid].apart = true;
    }
    node.inlined = node.kids.length + 1;
  }

  node(expression) {
    if (typeof expression === "boolean" || typeof expression === "number") return { op: "value", value: expression };
    if (typeof expression === "string") {
      if (this.constants.has(expression)) return { op: "value", value: this.constants.get(expression) };
      if (!this.places.has(expression)) throw new Error(`no variable ${expression}`);
      return { op: "variable", value: this.places.get(expression) };
    }
    const { op } = expression;
    if (op === "¬") return { op, kids: [this.add(expression.exp)] };
    if (op === "ite")
      return { op, kids: [this.add(expression.if), this.add(expression.then), this.add(expression.else)] };
    if (!(op in SIGNS)) throw new Error(`unknown operator ${op}`);
    return { op, kids: [this.add(expression.left), this.add(expression.right)] };
  }

  /** A node as it is written where it is used. */
  source(number) {
    const node = this.nodes[number];
    const isApart = node.apart || (node.uses > 1 && node.size > INLINE_MAX);
    return isApart && node.kids ? `n${number}()` : this.written(node);
  }

  written({ op, value, kids }) {
    if (op === "value") return String(Number(value));
    if (op === "variable") return `s[${value}]`;
    const parts = kids.map((kid) => this.source(kid));
    if (op === "¬") return `(!${parts[0]})`;
    if (op === "ite") return `(${parts[0]} ? ${parts[1]} : ${parts[2]})`;
    return ["=", "≠"].includes(op) ? `(+${parts[0]} ${SIGNS[op]} +${parts[1]})` : `(${parts[0]} ${SIGNS[op]} ${parts[1]})`;
  }

  /** The functions of all nodes: `make(s, clock)` gives those of `numbers`, over the state `s`. */
  compile(numbers) {
    const functions = this.nodes.map((node, number) => {
      if (!node.kids) return `const n${number} = () => ${this.written(node)};`;
      const found = `(t[${number}] === clock.now ? v[${number}] : (t[${number}] = clock.now, v[${number}] = ${this.written(node)}))`;
      return `const n${number} = () => ${found};`;
    });
    const used = this.nodes.map((node, number) => number).filter((number) => numbers.has(number) || this.isCalled(number));
    const body = used.map((number) => functions[number]).join("\n");
    const size = this.nodes.length;
    const given = [...numbers].map((number) => `${number}: n${number}`).join(", ");
    return new Function("s", "clock", `const t = new Uint32Array(${size}), v = new Array(${size}).fill(0);\n${body}\nreturn {${given}};`);
  }

  isCalled(number) {
    return this.source(number) === `n${number}()`;
  }
}

/** The file, read. */
export class Law {
  constructor(path) {
    const found = JSON.parse(readFileSync(path, "utf8"));
    if (found.metadata.version !== VERSION)
      throw new Error(`${path} has version ${found.metadata.version}, and this program reads ${VERSION}`);
    const constants = new Map(found.constants.map(({ name, value }) => [name, value]));
    const places = new Map(found.variables.map(({ name }, place) => [name, place]));
    this.compiler = new Compiler(places, constants);
    this.variables = found.variables.map((each) => this.variable(each, constants));
    this.edges = found.automata[0].edges.map((each) => this.edge(each, places));
    this.labels = new Map(this.edges.map((each) => [each.label, each]));
    this.properties = found.properties.map(({ name, expression }) => this.property(name, expression.values));
    const parts = this.edges.flatMap((each) => each.parts.map(({ node }) => node));
    const values = this.edges.flatMap((each) => each.effects.map(({ node }) => node));
    const guards = this.edges.map(({ guard }) => guard);
    const decisive = this.properties.map((each) => each.decisive);
    this.make = this.compiler.compile(new Set([...parts, ...values, ...guards, ...decisive]));
  }

  variable({ name, type, "initial-value": first }, constants) {
    const isTruth = type === "bool";
    const lower = isTruth ? 0 : type["lower-bound"];
    const upper = isTruth ? 1 : (type["upper-bound"] ?? Infinity); // both ends belong to it
    return { name, lower, upper, first: Number(constants.get(first) ?? first) };
  }

  edge({ action, guard, destinations }, places) {
    const parts = joined(guard.exp, "∧").map((part) => ({ node: this.compiler.add(part), text: text(part) }));
    const effects = destinations[0].assignments.map(({ ref, value }) => {
      if (!places.has(ref)) throw new Error(`no variable ${ref}`);
      return { place: places.get(ref), node: this.compiler.add(value) };
    });
    return { label: action, guard: this.compiler.add(guard.exp), parts, effects };
  }

  /** Reads "the greatest probability of reaching a state is 0", or its negation: such a state is wanted. */
  property(name, asked) {
    const wanted = asked.op === "¬";
    const never = wanted ? asked.exp : asked;
    if (never.op !== "≤" || never.right !== 0 || never.left.op !== "Pmax" || never.left.exp.op !== "F")
      throw new Error(`property ${name} asks something else`);
    return { name, wanted, decisive: this.compiler.add(never.left.exp.exp) };
  }

  /** For one unit test of one hold table. */
  oracle() {
    return new Oracle(this);
  }

  /** Every state, breadth first: how many, and for each property whether it is as it must be. */
  explore() {
    const began = process.hrtime.bigint();
    const world = new World(this);
    const { state } = world;
    const next = state.slice();
    const decide = this.properties.map(({ decisive }) => ({ ask: world.functions[decisive], reached: false }));
    const states = new States(this.variables);
    states.add(state);
    let [end, transitions, depth] = [1, 0, 0]; // the level's end
    for (let index = 0; index < states.count; index += 1) {
      if (index === end) [end, depth] = [states.count, depth + 1];
      states.read(index, state);
      world.clock.now += 1;
      for (const each of decide) each.reached ||= Boolean(each.ask());
      for (const edge of world.edges) {
        if (!edge.guard()) continue;
        transitions += 1;
        world.after(edge, next);
        states.add(next);
      }
    }
    const verdicts = Object.fromEntries(this.properties.map(({ name, wanted }, index) => [name, decide[index].reached === wanted]));
    const seconds = Number(process.hrtime.bigint() - began) / 1e9;
    return { states: states.count, transitions, depth, seconds, verdicts };
  }
}

/** One state, and the functions over it. */
class World {
  constructor(law) {
    this.law = law;
    this.state = Int32Array.from(law.variables.map(({ first }) => first));
    this.clock = { now: 1 };
    this.functions = law.make(this.state, this.clock);
    this.edges = law.edges.map((each) => ({
      label: each.label,
      parts: each.parts,
      guard: this.functions[each.guard],
      effects: each.effects.map(({ place, node }) => ({ place, value: this.functions[node] })),
    }));
  }

  /** Writes the state that an edge leads to; throws where a variable leaves its range. */
  after(edge, into) {
    into.set(this.state);
    for (const { place, value } of edge.effects) {
      const made = Number(value());
      const { name, lower, upper } = this.law.variables[place];
      if (made < lower || made > upper) throw new Error(`${edge.label} makes ${name} ${made}, which is not in its range`);
      into[place] = made;
    }
  }
}

/** All states that were found, in the order in which they were, each packed in as many 32-bit words as it needs. */
class States {
  constructor(variables) {
    let [word, shift] = [0, 0];
    this.fields = variables.map(({ name, lower, upper }, place) => {
      if (upper === Infinity) throw new Error(`${name} has no end: such a law is only followed`);
      const width = 32 - Math.clz32(upper - lower);
      if (shift + width > 32) [word, shift] = [word + 1, 0];
      const field = { place, lower, word, shift, mask: 2 ** width - 1 };
      shift += width;
      return field;
    });
    this.width = word + 1;
    this.packed = new Int32Array(this.width); // the state that is looked for
    this.count = 0;
    this.grow(1 << 16);
  }

  /** Makes room: half of the table is empty, so that a search in it ends soon. */
  grow(size) {
    const before = this.words;
    this.words = new Int32Array((size >> 1) * this.width);
    if (before) this.words.set(before);
    this.table = new Int32Array(size); // number of a state, plus 1
    for (let index = 0; index < this.count; index += 1) {
      this.packed.set(this.words.subarray(index * this.width, (index + 1) * this.width));
      this.table[this.find()] = index + 1;
    }
  }

  /** Where the packed state stands in the table, or would. */
  find() {
    let hash = 0;
    for (let word = 0; word < this.width; word += 1) {
      hash = Math.imul(hash ^ this.packed[word], 0x85ebca6b);
      hash = Math.imul(hash ^ (hash >>> 15), 0xc2b2ae35);
      hash ^= hash >>> 13;
    }
    let slot = hash & (this.table.length - 1);
    while (this.table[slot] !== 0 && !this.equals(this.table[slot] - 1)) slot = (slot + 1) & (this.table.length - 1);
    return slot;
  }

  equals(index) {
    const from = index * this.width;
    for (let word = 0; word < this.width; word += 1) if (this.words[from + word] !== this.packed[word]) return false;
    return true;
  }

  add(state) {
    this.packed.fill(0);
    for (const { place, lower, word, shift } of this.fields) this.packed[word] |= (state[place] - lower) << shift;
    const slot = this.find();
    if (this.table[slot] !== 0) return;
    this.words.set(this.packed, this.count * this.width);
    this.count += 1;
    this.table[slot] = this.count;
    if (this.count * 2 >= this.table.length) this.grow(this.table.length * 2);
  }

  read(index, state) {
    for (const { place, lower, word, shift, mask } of this.fields)
      state[place] = ((this.words[index * this.width + word] >>> shift) & mask) + lower;
  }
}

/** Follows one run, step by step, from the law's first state. */
export class Oracle {
  constructor(law) {
    this.law = law;
    this.world = new World(law);
  }

  /**
   * Takes a step of the law, such as `did("hold", 0)`. Gives the parts of the step's guard that are false: none if the
   * step is legal; else the run stays where it is.
   */
  did(name, ...actors) {
    const label = actors.length > 0 ? `${name}(${actors.join(",")})` : name;
    const edge = this.world.edges.find((each) => each.label === label);
    if (edge === undefined) throw new Error(`the law has no action ${label}`);
    if (!edge.guard()) return edge.parts.filter(({ node }) => !this.world.functions[node]()).map((part) => part.text);
    const next = this.world.state.slice();
    this.world.after(edge, next);
    this.world.state.set(next);
    this.world.clock.now += 1;
    return [];
  }

  /** What can come next. */
  may() {
    return this.world.edges.filter((each) => each.guard()).map(({ label }) => label);
  }

  /** The properties of what must never be that the state breaks. */
  broken() {
    const always = this.law.properties.filter((each) => !each.wanted);
    return always.filter((each) => this.world.functions[each.decisive]()).map(({ name }) => name);
  }
}

// `node law.mjs FILE` explores, `node law.mjs FILE LABEL...` follows steps; both print JSON lines.
if (process.argv[1] === import.meta.filename) {
  try {
    const law = new Law(process.argv[2]);
    const oracle = law.oracle();
    const labels = process.argv.slice(3);
    if (labels.length === 0) console.log(JSON.stringify(law.explore()));
    for (const step of labels) {
      const found = { step, false: oracle.did(step), may: oracle.may(), broken: oracle.broken() };
      console.log(JSON.stringify(found));
    }
  } catch (error) {
    console.error(error.message);
    process.exitCode = 2;
  }
}
