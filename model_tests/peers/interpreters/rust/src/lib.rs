//! Runs the law of broker long polling from its JANI file: explores the law, and follows a program's steps for a unit
//! test. What is in the file is told in docs/export.md. Leaves out every part of JANI that is not there.

use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

/// That of the files which this program reads.
pub const VERSION: &str = "1";

type Result<T> = std::result::Result<T, String>;

struct Variable {
    name: String,
    lower: i32,
    upper: Option<i32>,
    first: i32,
}

struct Edge {
    label: String,
    guard: usize,
    parts: Vec<(usize, String)>,
    effects: Vec<(usize, usize)>,
}

struct Property {
    name: String,
    decisive: usize,
    /// Whether a state that decides it must be reached, or must not.
    wanted: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Node {
    Constant(i32),
    Variable(usize),
    /// A variable and a constant: what is asked most.
    Is(usize, i32),
    IsNot(usize, i32),
    Not(usize),
    And(usize, usize),
    Or(usize, usize),
    Choice(usize, usize, usize),
    Equal(usize, usize),
    Unequal(usize, usize),
    Less(usize, usize),
    NotMore(usize, usize),
    Sum(usize, usize),
    Difference(usize, usize),
}
use Node::*;

/// The file, read. Equal expressions are one node, so that a guard which many others ask for is evaluated once.
#[derive(Default)]
pub struct Law {
    variables: Vec<Variable>,
    places: HashMap<String, usize>,
    constants: HashMap<String, i32>,
    nodes: Vec<Node>,
    shared: Vec<bool>,
    known: HashMap<Node, usize>,
    edges: Vec<Edge>,
    properties: Vec<Property>,
}

fn text_of<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value[key].as_str().ok_or_else(|| format!("{key} is missing"))
}

fn list_of<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    value[key].as_array().ok_or_else(|| format!("{key} is missing"))
}

fn number_of(value: &Value) -> Result<i32> {
    let number = value.as_i64().ok_or_else(|| format!("{value} is no number"))?;
    i32::try_from(number).map_err(|_| format!("{number} is too large"))
}

impl Law {
    /// Reads a file that `longpoll export --to jani` wrote.
    pub fn load(path: &str) -> Result<Law> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        let found: Value = serde_json::from_str(&text).map_err(|error| format!("{path}: {error}"))?;
        let version = &found["metadata"]["version"];
        if version != VERSION {
            return Err(format!("{path} has version {version}, and this program reads {VERSION}"));
        }
        Law::read(&found).map_err(|why| format!("{path} is no law that this program reads: {why}"))
    }

    fn read(found: &Value) -> Result<Law> {
        let mut law = Law::default();
        for each in list_of(found, "constants")? {
            law.constants.insert(text_of(each, "name")?.into(), number_of(&each["value"])?);
        }
        for each in list_of(found, "variables")? {
            law.declare(each)?;
        }
        for each in list_of(&found["automata"][0], "edges")? {
            let made = law.edge(each)?;
            law.edges.push(made);
        }
        for each in list_of(found, "properties")? {
            let made = law.property(text_of(each, "name")?, &each["expression"]["values"])?;
            law.properties.push(made);
        }
        Ok(law)
    }

    fn declare(&mut self, found: &Value) -> Result<()> {
        let (name, kind) = (text_of(found, "name")?.to_string(), &found["type"]);
        let (lower, upper) = match kind.as_str() {
            Some("bool") => (0, Some(1)),
            _ => (number_of(&kind["lower-bound"])?, kind.get("upper-bound").map(number_of).transpose()?),
        };
        let first = self.add(&found["initial-value"])?;
        let Constant(first) = self.nodes[first] else { return Err(format!("{name} begins as no constant")) };
        self.places.insert(name.clone(), self.variables.len());
        self.variables.push(Variable { name, lower, upper, first });
        Ok(())
    }

    fn edge(&mut self, found: &Value) -> Result<Edge> {
        let guard = &found["guard"]["exp"];
        let mut parts = Vec::new();
        for part in joined(guard, "∧") {
            parts.push((self.add(part)?, text(part)));
        }
        let mut effects = Vec::new();
        for each in list_of(&found["destinations"][0], "assignments")? {
            effects.push((self.place(text_of(each, "ref")?)?, self.add(&each["value"])?));
        }
        Ok(Edge { label: text_of(found, "action")?.into(), guard: self.add(guard)?, parts, effects })
    }

    /// Reads "the greatest probability of reaching a state is 0", or its negation.
    fn property(&mut self, name: &str, asked: &Value) -> Result<Property> {
        let wanted = asked["op"] == "¬";
        let never = if wanted { &asked["exp"] } else { asked };
        let reached = &never["left"];
        if never["op"] != "≤" || never["right"] != 0 || reached["op"] != "Pmax" || reached["exp"]["op"] != "F" {
            return Err(format!("property {name} asks something else"));
        }
        Ok(Property { name: name.into(), decisive: self.add(&reached["exp"]["exp"])?, wanted })
    }

    fn place(&self, name: &str) -> Result<usize> {
        self.places.get(name).copied().ok_or_else(|| format!("no variable {name}"))
    }

    /// Makes an expression's node, or finds it if there is one that says the same.
    fn add(&mut self, expression: &Value) -> Result<usize> {
        let node = self.node(expression)?;
        if let Some(&place) = self.known.get(&node) {
            self.shared[place] = !matches!(node, Constant(_) | Variable(_) | Is(..) | IsNot(..));
            return Ok(place);
        }
        self.known.insert(node, self.nodes.len());
        self.nodes.push(node);
        self.shared.push(false);
        Ok(self.nodes.len() - 1)
    }

    fn node(&mut self, expression: &Value) -> Result<Node> {
        match expression {
            Value::Bool(value) => return Ok(Constant(i32::from(*value))),
            Value::Number(_) => return Ok(Constant(number_of(expression)?)),
            Value::String(name) => {
                let constant = self.constants.get(name).map(|value| Ok(Constant(*value)));
                return constant.unwrap_or_else(|| Ok(Variable(self.place(name)?)));
            }
            _ => {}
        }
        let op = text_of(expression, "op")?;
        match op {
            "¬" => return Ok(Not(self.add(&expression["exp"])?)),
            "ite" => {
                let (condition, then) = (self.add(&expression["if"])?, self.add(&expression["then"])?);
                return Ok(Choice(condition, then, self.add(&expression["else"])?));
            }
            _ => {}
        }
        let (left, right) = (self.add(&expression["left"])?, self.add(&expression["right"])?);
        Ok(match (op, self.nodes[left], self.nodes[right]) {
            ("=", Variable(place), Constant(value)) => Is(place, value),
            ("≠", Variable(place), Constant(value)) => IsNot(place, value),
            ("=", ..) => Equal(left, right),
            ("≠", ..) => Unequal(left, right),
            ("∧", ..) => And(left, right),
            ("∨", ..) => Or(left, right),
            ("<", ..) => Less(left, right),
            ("≤", ..) => NotMore(left, right),
            ("+", ..) => Sum(left, right),
            ("-", ..) => Difference(left, right),
            _ => return Err(format!("unknown operator {op}")),
        })
    }

    /// For one unit test of one hold table.
    pub fn oracle(&self) -> Oracle<'_> {
        Oracle { world: World::new(self) }
    }

    /// Finds every state, breadth first. A state is packed in 128 bits, so that equal numbers are equal states.
    pub fn explore(&self) -> Result<Found> {
        let began = Instant::now();
        let fields = self.fields()?;
        let mut world = World::new(self);
        let mut next = world.state.clone();
        let mut reached = vec![false; self.properties.len()];
        let first = pack(&fields, &world.state);
        let mut seen = HashMap::from([(first, ())]);
        let (mut level, mut transitions, mut depth) = (vec![first], 0, 0);
        loop {
            let mut following = Vec::new();
            for &packed in &level {
                unpack(&fields, packed, &mut world.state);
                world.now += 1;
                for (known, each) in reached.iter_mut().zip(&self.properties) {
                    *known = *known || world.value(each.decisive) != 0;
                }
                for edge in &self.edges {
                    if world.value(edge.guard) == 0 {
                        continue;
                    }
                    transitions += 1;
                    world.after(edge, &mut next)?;
                    let after = pack(&fields, &next);
                    if seen.insert(after, ()).is_none() {
                        following.push(after);
                    }
                }
            }
            if following.is_empty() {
                break;
            }
            (level, depth) = (following, depth + 1);
        }
        let pairs = self.properties.iter().zip(&reached);
        let verdicts = pairs.map(|(each, reached)| (each.name.clone(), *reached == each.wanted)).collect();
        Ok(Found { states: seen.len(), transitions, depth, seconds: began.elapsed().as_secs_f64(), verdicts })
    }

    /// Gives each variable its bits of a packed state: the lower end, the shift and the mask.
    fn fields(&self) -> Result<Vec<(i32, u32, u128)>> {
        let (mut fields, mut used) = (Vec::new(), 0);
        for each in &self.variables {
            let upper = each.upper.ok_or_else(|| format!("{} has no end: such a law is only followed", each.name))?;
            let width = 32 - ((upper - each.lower) as u32).leading_zeros();
            fields.push((each.lower, used, (1u128 << width) - 1));
            used += width;
        }
        if used > 128 { Err("a state needs more than 128 bits".into()) } else { Ok(fields) }
    }
}

/// What an exploration counts, and for each property whether it is as it must be.
pub struct Found {
    pub states: usize,
    pub transitions: usize,
    pub depth: usize,
    pub seconds: f64,
    pub verdicts: BTreeMap<String, bool>,
}

fn pack(fields: &[(i32, u32, u128)], state: &[i32]) -> u128 {
    fields.iter().zip(state).fold(0, |packed, ((lower, shift, _), value)| packed | ((value - lower) as u128) << shift)
}

fn unpack(fields: &[(i32, u32, u128)], packed: u128, state: &mut [i32]) {
    for ((lower, shift, mask), value) in fields.iter().zip(state) {
        *value = (packed >> shift & mask) as i32 + lower;
    }
}

/// Evaluates nodes in one state; what is shared is remembered until the state is another.
struct World<'a> {
    law: &'a Law,
    state: Vec<i32>,
    now: u32,
    known: Vec<(u32, i32)>,
}

impl<'a> World<'a> {
    fn new(law: &'a Law) -> World<'a> {
        let state = law.variables.iter().map(|each| each.first).collect();
        World { law, state, now: 1, known: vec![(0, 0); law.nodes.len()] }
    }

    fn value(&mut self, place: usize) -> i32 {
        if !self.law.shared[place] {
            return self.compute(place);
        }
        let (when, value) = self.known[place];
        if when == self.now {
            return value;
        }
        let value = self.compute(place);
        self.known[place] = (self.now, value);
        value
    }

    fn compute(&mut self, place: usize) -> i32 {
        match self.law.nodes[place] {
            Constant(value) => value,
            Variable(place) => self.state[place],
            Is(place, value) => i32::from(self.state[place] == value),
            IsNot(place, value) => i32::from(self.state[place] != value),
            Not(inner) => 1 - self.value(inner),
            And(left, right) => if self.value(left) == 0 { 0 } else { self.value(right) },
            Or(left, right) => if self.value(left) != 0 { 1 } else { self.value(right) },
            Choice(condition, then, other) => if self.value(condition) != 0 { self.value(then) } else { self.value(other) },
            Equal(left, right) => i32::from(self.value(left) == self.value(right)),
            Unequal(left, right) => i32::from(self.value(left) != self.value(right)),
            Less(left, right) => i32::from(self.value(left) < self.value(right)),
            NotMore(left, right) => i32::from(self.value(left) <= self.value(right)),
            Sum(left, right) => self.value(left) + self.value(right),
            Difference(left, right) => self.value(left) - self.value(right),
        }
    }

    /// Writes the state that an edge leads to; an error where a variable leaves its range.
    fn after(&mut self, edge: &Edge, into: &mut Vec<i32>) -> Result<()> {
        into.clone_from(&self.state);
        for &(place, node) in &edge.effects {
            let (value, kept) = (self.value(node), &self.law.variables[place]);
            if value < kept.lower || kept.upper.is_some_and(|upper| value > upper) {
                return Err(format!("{} makes {} {value}, which is not in its range", edge.label, kept.name));
            }
            into[place] = value;
        }
        Ok(())
    }
}

/// Follows one run, step by step, from the law's first state.
pub struct Oracle<'a> {
    world: World<'a>,
}

impl Oracle<'_> {
    /// Takes a step of the law, such as `did("hold(0)")`. Gives the parts of the step's guard that are false: none if
    /// the step is legal; else the run stays where it is.
    pub fn did(&mut self, label: &str) -> Result<Vec<&str>> {
        let law = self.world.law;
        let found = law.edges.iter().find(|each| each.label == label);
        let edge = found.ok_or_else(|| format!("the law has no action {label}"))?;
        if self.world.value(edge.guard) == 0 {
            let parts = edge.parts.iter().filter(|(node, _)| self.world.value(*node) == 0);
            return Ok(parts.map(|(_, written)| written.as_str()).collect());
        }
        let mut next = Vec::new();
        self.world.after(edge, &mut next)?;
        self.world.state = next;
        self.world.now += 1;
        Ok(Vec::new())
    }

    /// What can come next.
    pub fn may(&mut self) -> Vec<&str> {
        let possible = self.world.law.edges.iter().filter(|each| self.world.value(each.guard) != 0);
        possible.map(|each| each.label.as_str()).collect()
    }

    /// The properties of what must never be that the state breaks.
    pub fn broken(&mut self) -> Vec<&str> {
        let always = self.world.law.properties.iter().filter(|each| !each.wanted);
        always.filter(|each| self.world.value(each.decisive) != 0).map(|each| each.name.as_str()).collect()
    }
}

/// What an operator of two arguments joins, however it is nested.
fn joined<'a>(expression: &'a Value, op: &str) -> Vec<&'a Value> {
    if expression["op"] != op {
        return vec![expression];
    }
    let mut parts = joined(&expression["left"], op);
    parts.extend(joined(&expression["right"], op));
    parts
}

/// An expression with the file's operators.
fn text(expression: &Value) -> String {
    let written = nested(expression);
    match written.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        Some(inner) => inner.to_string(),
        None => written,
    }
}

fn nested(expression: &Value) -> String {
    let of = |key: &str| nested(&expression[key]);
    match expression["op"].as_str() {
        None => expression.as_str().map_or_else(|| expression.to_string(), str::to_string),
        Some(op @ ("∧" | "∨")) => {
            let parts: Vec<String> = joined(expression, op).into_iter().map(nested).collect();
            format!("({})", parts.join(&format!(" {op} ")))
        }
        Some("¬") => format!("¬{}", of("exp")),
        Some("ite") => format!("(if {} then {} else {})", of("if"), of("then"), of("else")),
        Some(op) => format!("({} {op} {})", of("left"), of("right")),
    }
}
