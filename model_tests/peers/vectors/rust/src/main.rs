//! Plays conformance vectors to a broker, with nothing but the standard library and a reader of JSON.
//!
//!     play FILE BROKER NAME_SERVER BROKER_NAME CLUSTER HAS [ONLY]
//!
//! HAS is what the broker has, ONLY the ids that are played, each with commas between them. The page beside the vectors
//! tells what steps and patterns mean. A line for each vector; the exit code is 0 when none failed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, TcpStream};
use std::sync::mpsc::{channel, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

const BESIDE: usize = 16;
const AFTER: Duration = Duration::from_millis(250);
const LANGUAGES: &str = "JAVA CPP DOTNET PYTHON DELPHI ERLANG RUBY OTHER HTTP GO PHP OMS RUST";
type Texts = BTreeMap<String, String>;
type Said<T> = Result<T, String>;

// -- what a broker sends

#[derive(Clone)]
struct Command {
    code: i64,
    flag: i64,
    opaque: i64,
    language: String,
    remark: String,
    fields: Texts,
    body: Vec<u8>,
    at: Instant,
}

/// Bytes that are read from their begin; None where they end too early.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, size: i64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(size).ok()?)?;
        self.0 = rest;
        Some(taken)
    }
    fn number(&mut self, size: i64) -> Option<i64> {
        let bytes = self.take(size)?;
        let sign = if bytes[0] & 0x80 != 0 { -1 } else { 0 };
        Some(bytes.iter().fold(sign, |value, byte| value << 8 | i64::from(*byte)))
    }
    fn text(&mut self, size: i64) -> Option<String> {
        Some(String::from_utf8_lossy(self.take(size)?).into_owned())
    }
    fn host(&mut self, is_v6: bool) -> Option<String> {
        let bytes = self.take(if is_v6 { 16 } else { 4 })?;
        let v4 = || <[u8; 4]>::try_from(bytes).map(|four| Ipv4Addr::from(four).to_string());
        let shown = v4().or_else(|_| <[u8; 16]>::try_from(bytes).map(|all| Ipv6Addr::from(all).to_string()));
        Some(format!("{}:{}", shown.ok()?, self.number(4)?))
    }
}

fn decode(frame: &[u8]) -> Option<Command> {
    let mut reader = Reader(frame);
    let mark = reader.number(4)?;
    let raw = reader.take(mark & 0xFF_FFFF)?;
    let (body, at) = (reader.0.to_vec(), Instant::now());
    if mark >> 24 == 0 {
        let head: Map<String, Value> = serde_json::from_slice(raw).ok()?;
        let number = |name: &str| head.get(name).map_or(Some(0), Value::as_i64);
        let text = |name: &str| match head.get(name) {
            None | Some(Value::Null) => Some(String::new()),
            Some(value) => value.as_str().map(str::to_owned),
        };
        let mut fields = Texts::new();
        if let Some(all) = head.get("extFields").filter(|all| !all.is_null()) {
            for (name, value) in all.as_object()? {
                fields.insert(name.clone(), value.as_str()?.to_owned());
            }
        }
        let (code, flag, opaque) = (number("code")?, number("flag")?, number("opaque")?);
        return Some(Command { code, flag, opaque, language: text("language")?, remark: text("remark")?, fields, body, at });
    }
    let mut head = Reader(raw);
    let (code, language, _version) = (head.number(2)?, head.number(1)?, head.number(2)?);
    let (opaque, flag, size) = (head.number(4)?, head.number(4)?, head.number(4)?);
    let language = LANGUAGES.split(' ').nth(usize::try_from(language).ok()?)?.to_owned();
    let remark = head.text(size)?;
    let (mut fields, size) = (Texts::new(), head.number(4)?);
    let mut texts = Reader(head.take(size)?);
    while !texts.0.is_empty() {
        let size = texts.number(2)?;
        let name = texts.text(size)?;
        let size = texts.number(4)?;
        fields.insert(name, texts.text(size)?);
    }
    Some(Command { code, flag, opaque, language, remark, fields, body, at })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn crc32(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| crc >> 1 ^ if crc & 1 == 1 { 0xEDB8_8320 } else { 0 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}

/// Puts one record by its places.
fn put_record(found: &mut Texts, place: &str, reader: &mut Reader) -> Option<()> {
    let before = reader.0.len();
    let mut put = |name: &str, value: String| found.insert(format!("{place}.{name}"), value);
    let size = reader.number(4)?;
    let magic = hex(reader.take(4)?).to_uppercase();
    let crc = reader.number(4)?;
    put("bodyCRC", crc.to_string());
    let mut sys_flag = 0;
    for (name, size) in [("queueId", 4), ("flag", 4), ("queueOffset", 8), ("physicalOffset", 8), ("sysFlag", 4), ("bornTimestamp", 8)] {
        let value = reader.number(size)?;
        sys_flag = if name == "sysFlag" { value } else { sys_flag };
        put(name, value.to_string());
    }
    put("bornHost", reader.host(sys_flag & 0x10 != 0)?);
    put("storeTimestamp", reader.number(8)?.to_string());
    put("storeHost", reader.host(sys_flag & 0x20 != 0)?);
    put("reconsumeTimes", reader.number(4)?.to_string());
    reader.number(8)?;
    let length = reader.number(4)?;
    let body = reader.take(length)?;
    put("body", String::from_utf8_lossy(body).into_owned());
    put("bodyHex", hex(body));
    put("bodyLength", length.to_string());
    put("bodyCRCok", (i64::from(crc32(body) & 0x7FFF_FFFF) == crc).to_string());
    // From 5.0 a topic's length may take two bytes.
    let length = reader.number(if magic == "DAA320AB" { 2 } else { 1 })?;
    put("topic", reader.text(length)?);
    put("magic", magic);
    let length = reader.number(2)?;
    let text = reader.text(length)?;
    let properties: Texts = text.split('\u{2}').filter_map(|part| part.split_once('\u{1}')).map(|(name, value)| (name.into(), value.into())).collect();
    put("properties.#", properties.len().to_string());
    for (name, value) in properties {
        put(&format!("properties.{name}"), value);
    }
    (before - reader.0.len() == size as usize).then_some(())
}

fn put_records(body: &[u8]) -> Option<Texts> {
    let (mut found, mut reader, mut count) = (Texts::new(), Reader(body), 0);
    while !reader.0.is_empty() {
        put_record(&mut found, &format!("records.{count}"), &mut reader)?;
        count += 1;
    }
    found.insert("records.#".into(), count.to_string());
    Some(found)
}

/// Puts a value and what is in it by their places; lists in the order of what is in them.
fn put(found: &mut Texts, place: &str, value: &Value) {
    let texts = |each: &Value| {
        let mut one = Texts::new();
        put(&mut one, "", each);
        one.into_values().collect::<Vec<_>>()
    };
    match value {
        Value::Object(all) => {
            found.insert(format!("{place}.#"), all.len().to_string());
            all.iter().for_each(|(name, each)| put(found, &format!("{place}.{name}"), each));
        }
        Value::Array(all) => {
            let mut sorted = all.clone();
            sorted.sort_by_key(texts);
            found.insert(format!("{place}.#"), all.len().to_string());
            sorted.iter().enumerate().for_each(|(number, each)| put(found, &format!("{place}.{number}"), each));
        }
        Value::String(text) => drop(found.insert(place.into(), text.clone())),
        other => drop(found.insert(place.into(), other.to_string())),
    }
}

/// JSON whose names may be whole numbers without quotes.
fn lenient(body: &[u8]) -> Option<Value> {
    let text = String::from_utf8(body.to_vec()).ok()?;
    let mut quoted = String::new();
    for part in text.split_inclusive(['{', ',']) {
        let digits = part.len() - part.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let is_name = digits > 0 && part[digits..].starts_with(':');
        quoted += &if is_name { format!("\"{}\"{}", &part[..digits], &part[digits..]) } else { part.to_owned() };
    }
    serde_json::from_str(&text).or_else(|_| serde_json::from_str(&quoted)).ok()
}

fn put_fields(found: &mut Texts, place: &str, fields: &Texts) {
    found.insert(format!("{place}.#"), fields.len().to_string());
    found.extend(fields.iter().map(|(name, text)| (format!("{place}.{name}"), text.clone())));
}

impl Command {
    /// What an answer is, by its places; its body as records or JSON where it is.
    fn shown(&self) -> Texts {
        let own = [("code", self.code.to_string()), ("flag", self.flag.to_string()), ("language", self.language.clone()), ("hasRemark", (!self.remark.is_empty()).to_string())];
        let mut found: Texts = own.into_iter().map(|(name, text)| (name.to_owned(), text)).collect();
        put_fields(&mut found, "extFields", &self.fields);
        let id = self.fields.get("msgId").map_or("", String::as_str);
        if let Some(Ok(place)) = id.get(id.len().saturating_sub(16)..).map(|digits| u64::from_str_radix(digits, 16)) {
            found.insert("place".into(), place.to_string());
        }
        if self.body.is_empty() {
            found.insert("empty".into(), "true".into());
        } else if let Some(records) = put_records(&self.body) {
            found.extend(records);
        } else {
            found.insert("hex".into(), hex(&self.body));
            if let Some(value) = lenient(&self.body) {
                put(&mut found, "json", &value);
            }
        }
        found
    }
}

fn is_address(text: &str) -> bool {
    text.parse::<std::net::SocketAddrV4>().is_ok()
}

fn are_ids(text: &str) -> bool {
    let is_id = |id: &str| matches!(id.len(), 32 | 56) && id.chars().all(|digit| digit.is_ascii_hexdigit());
    text.split(',').all(is_id)
}

fn fit(of: &str, pattern: &Value, found: &Texts) -> Said<()> {
    for (place, wanted) in pattern.as_object().into_iter().flatten() {
        let (wanted, got) = (wanted.as_str().unwrap_or_default(), found.get(place));
        let fits = got.is_some_and(|text| {
            let ids = format!("<ids {}>", text.split(',').count());
            text == wanted || wanted == "<any>" || wanted == "<address>" && is_address(text) || wanted == ids && are_ids(text)
        });
        if !fits {
            return Err(format!("{of}, {place}: expected {wanted}, got {got:?}"));
        }
    }
    Ok(())
}

// -- playing

/// A connection. What came waits in the inbox until the playing looks at it.
struct Line {
    socket: TcpStream,
    inbox: Receiver<Command>,
    waited: HashSet<i64>,
    answers: HashMap<i64, Command>,
    pushes: Vec<Command>,
    is_any: bool,
    is_closed: bool,
}

impl Line {
    fn open(address: &str) -> Said<Line> {
        let socket = TcpStream::connect(address).map_err(|error| format!("{address}: {error}"))?;
        let mut from = socket.try_clone().map_err(|error| error.to_string())?;
        let (into, inbox) = channel();
        thread::spawn(move || {
            let mut head = [0; 4];
            while from.read_exact(&mut head).is_ok() {
                let mut frame = vec![0; u32::from_be_bytes(head).min(16 << 20) as usize];
                let Some(command) = from.read_exact(&mut frame).ok().and_then(|()| decode(&frame)) else { break };
                if into.send(command).is_err() {
                    break;
                }
            }
        });
        Ok(Line { socket, inbox, waited: HashSet::new(), answers: HashMap::new(), pushes: vec![], is_any: false, is_closed: false })
    }

    fn keep(&mut self, command: Command) -> Said<()> {
        let opaque = command.opaque;
        if command.flag & 1 == 0 {
            self.pushes.push(command);
        } else if !self.waited.remove(&opaque) && (!self.is_any || self.answers.contains_key(&opaque)) {
            return Err(format!("an answer to {opaque}, which nobody asked or was answered"));
        } else {
            self.answers.insert(opaque, command);
        }
        Ok(())
    }

    /// The answer to a request; None when the connection is closed or the time over.
    fn wait(&mut self, opaque: i64, within: Duration) -> Said<Option<Command>> {
        let end = Instant::now() + within;
        while !self.answers.contains_key(&opaque) && !self.is_closed {
            match self.inbox.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(command) => self.keep(command)?,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => return Ok(None),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => self.is_closed = true,
            }
        }
        Ok(self.answers.get(&opaque).cloned())
    }
}

fn number(step: &Value, name: &str) -> i64 {
    step[name].as_i64().unwrap_or_default()
}

fn millis(step: &Value, name: &str) -> Duration {
    Duration::from_millis(number(step, name).unsigned_abs())
}

fn content(pieces: &[Value]) -> Vec<u8> {
    let one = |piece: &Value| [piece["text"].as_str().unwrap_or_default().as_bytes(), &unhex(piece["hex"].as_str().unwrap_or_default())].concat();
    pieces.iter().flat_map(|piece| one(piece).repeat(number(piece, "times").max(1) as usize)).collect()
}

struct Playing<'a> {
    words: &'a [String],
    names: HashMap<String, String>,
    lines: BTreeMap<String, Line>,
    asked: HashMap<String, (String, i64, Instant)>,
}

impl Playing<'_> {
    /// A text with its variables, each `${name}` or `${name+N}`.
    fn filled(&self, text: &str) -> String {
        let mut parts = text.split("${");
        let mut found = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (name, rest) = part.split_once('}').unwrap_or((part, ""));
            let end = name.find(['+', '-']).unwrap_or(name.len());
            let known = self.names.get(&name[..end]).cloned().unwrap_or_default();
            let sum = known.parse::<i64>().ok().zip(name[end..].parse::<i64>().ok()).map(|(one, more)| one + more);
            found += &sum.map_or(known, |sum| sum.to_string());
            found += rest;
        }
        found
    }

    fn send(&mut self, step: &Value) -> Said<(String, i64, Instant)> {
        let (name, opaque) = (step["conn"].as_str().unwrap_or_default().to_owned(), number(step, "opaque"));
        if !self.lines.contains_key(&name) {
            let address = &self.words[if name.starts_with("ns") { 2 } else { 1 }];
            self.lines.insert(name.clone(), Line::open(address)?);
        }
        let line = self.lines.get_mut(&name).ok_or("no connection")?;
        line.waited.insert(opaque);
        line.answers.remove(&opaque);
        let mut frame = unhex(step["raw"].as_str().unwrap_or_default());
        line.is_any |= !frame.is_empty();
        if let Some(piece) = step.get("header") {
            let (header, body) = (content(std::slice::from_ref(piece)), content(step["body"].as_array().map_or(&[], Vec::as_slice)));
            let mark = number(piece, "kind") << 24 | header.len() as i64;
            frame = [&((4 + header.len() + body.len()) as u32).to_be_bytes()[..], &(mark as u32).to_be_bytes(), &header, &body].concat();
        }
        let at = Instant::now();
        let _closed = line.socket.write_all(&frame); // Whoever waits for the answer sees it.
        Ok((name, opaque, at))
    }

    fn answer(&mut self, name: &str, step: &Value) -> Said<()> {
        let (conn, opaque, asked_at) = self.asked[name].clone();
        let line = self.lines.get_mut(&conn).ok_or("no connection")?;
        let came = line.wait(opaque, millis(step, "withinMs"))?;
        let nothing = if line.is_closed { "closed" } else { "silence" };
        let found = came.as_ref().map_or_else(|| Texts::from([(nothing.into(), "true".into())]), Command::shown);
        if let (Some(command), Some(after)) = (came, step["notAfterMs"].as_i64()) {
            let (held_ms, before) = (command.at.duration_since(asked_at).as_millis() as i64, number(step, "notBeforeMs"));
            if held_ms < before - 1 || held_ms > after {
                return Err(format!("{name}: expected after {before} to {after} ms, came after {held_ms}"));
            }
        }
        fit(name, &step["expect"], &found)?;
        for (variable, place) in step["save"].as_object().into_iter().flatten() {
            self.names.insert(variable.clone(), found.get(place.as_str().unwrap_or_default()).cloned().unwrap_or_default());
        }
        Ok(())
    }

    fn until(&mut self, step: &Value) -> Said<()> {
        let (end, field) = (Instant::now() + millis(step, "limitMs"), step["field"].as_str().unwrap_or_default());
        loop {
            let (conn, opaque, _at) = self.send(step)?;
            let line = self.lines.get_mut(&conn).ok_or("no connection")?;
            let came = line.wait(opaque, end.saturating_duration_since(Instant::now()))?;
            let command = came.ok_or_else(|| format!("{field} does not come to {}", step["until"]))?;
            if command.fields.get(field).and_then(|text| text.parse().ok()).unwrap_or(-1) >= number(step, "until") {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// What the broker sent of its own, on every connection, until now.
    fn pushes(&mut self) -> Said<Texts> {
        let (mut found, mut count) = (Texts::new(), 0);
        for (name, line) in &mut self.lines {
            while let Ok(command) = line.inbox.try_recv() {
                line.keep(command)?;
            }
            for push in &line.pushes {
                put_fields(&mut found, &format!("{count}.extFields"), &push.fields);
                found.insert(format!("{count}.conn"), name.clone());
                found.insert(format!("{count}.code"), push.code.to_string());
                found.insert(format!("{count}.flag"), push.flag.to_string());
                count += 1;
            }
        }
        found.insert("#".into(), count.to_string());
        Ok(found)
    }

    fn step(&mut self, step: &Value) -> Said<()> {
        thread::sleep(millis(step, "sleepMs"));
        if let Some(name) = step["ask"].as_str() {
            let asked = self.send(step)?;
            self.asked.insert(name.into(), asked);
        } else if let Some(name) = step["answer"].as_str() {
            self.answer(name, step)?;
        } else if let Some(name) = step["after"].as_str() {
            thread::sleep((self.asked[name].2 + millis(step, "ms")).saturating_duration_since(Instant::now()));
        } else if let Some(line) = step["close"].as_str().and_then(|name| self.lines.remove(name)) {
            line.socket.shutdown(Shutdown::Both).map_err(|error| error.to_string())?;
        } else if step.get("until").is_some() {
            self.until(step)?;
        } else if let Some(pattern) = step.get("pushes") {
            thread::sleep(millis(step, "afterMs"));
            fit("pushes", pattern, &self.pushes()?)?;
        }
        Ok(())
    }

    fn play(&mut self, vector: &Value, run: &str) -> Said<()> {
        self.names.insert("run".into(), run.into());
        for step in vector["steps"].as_array().into_iter().flatten() {
            let text = step.to_string().replace("247b72756e7d", &hex(run.as_bytes()));
            let filled: Value = serde_json::from_str(&self.filled(&text)).map_err(|error| error.to_string())?;
            self.step(&filled)?;
        }
        for line in self.lines.values_mut() {
            let _closed = line.socket.shutdown(Shutdown::Write);
            line.wait(i64::MIN, AFTER)?;
        }
        Ok(())
    }
}

fn play(vector: &Value, words: &[String], number: u64) -> Said<()> {
    let (mut run, mut left) = (String::new(), number);
    while run.len() < 6 {
        run.extend(char::from_digit((left % 36) as u32, 36));
        left /= 36;
    }
    let names = [("brokerName", &words[3]), ("cluster", &words[4])].map(|(name, text)| (name.to_owned(), text.clone()));
    let mut playing = Playing { words, names: names.into(), lines: BTreeMap::new(), asked: HashMap::new() };
    let said = playing.play(vector, &run);
    for line in playing.lines.values() {
        let _closed = line.socket.shutdown(Shutdown::Both);
    }
    said
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let text = std::fs::read_to_string(&words[0]).unwrap_or_else(|error| panic!("{}: {error}", words[0]));
    let has: HashSet<&str> = words[5].split(',').collect();
    let only: Option<HashSet<&str>> = words.get(6).map(|ids| ids.split(',').collect());
    let vectors: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a line that is no JSON")).collect();
    let chosen = vectors.iter().filter(|each| only.as_ref().is_none_or(|ids| ids.contains(each["id"].as_str().unwrap_or_default())));
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
    let left = Arc::new(Mutex::new(chosen.enumerate()));
    let counts = Mutex::new([0, 0, 0]);
    thread::scope(|scope| {
        for _ in 0..BESIDE {
            scope.spawn(|| loop {
                let Some((number, vector)) = left.lock().expect("a player panicked").next() else { break };
                let is_unfit = |name: &&str| has.contains(name.trim_start_matches('!')) == name.starts_with('!');
                let unfit: Vec<&str> = vector["when"].as_array().into_iter().flatten().filter_map(Value::as_str).filter(is_unfit).collect();
                let (kind, outcome, why) = if unfit.is_empty() {
                    match play(vector, &words, since.wrapping_mul(31) + number as u64) {
                        Ok(()) => (0, "PASS", String::new()),
                        Err(said) => (1, "FAIL", said),
                    }
                } else {
                    (2, "SKIPPED", format!("the broker is not: {}", unfit.join(", ")))
                };
                let mut counts = counts.lock().expect("a player panicked");
                counts[kind] += 1;
                println!("{}", format!("{outcome} {} {why}", vector["id"].as_str().unwrap_or_default()).trim_end());
            });
        }
    });
    let [passed, failed, skipped] = *counts.lock().expect("a player panicked");
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    std::process::exit(i32::from(failed > 0 || passed == 0));
}
