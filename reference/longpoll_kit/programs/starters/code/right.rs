// A hold table: pulls wait here until a message comes or their time is up. Speaks the protocol of `longpoll dojo`.
use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead, Write};

#[derive(Clone)]
struct Pull { id: i64, connection: i64, queue: String, offset: usize, deadline_ms: i64 }

// What is done when a message goes on from its step point.
enum Next { Hold(Pull), Wake(String) }
type Stop = Option<(&'static str, Next)>;

#[derive(Default)]
struct Table {
    now_ms: i64,
    logs: HashMap<String, Vec<String>>, // queue -> its messages
    held: Vec<Pull>,                    // the pulls that wait
    closed: HashSet<i64>,               // connections
    paused: HashMap<i64, Next>,
}

impl Table {
    fn pull(&mut self, pull: Pull) -> Stop {
        if self.look(&pull) { return None; }
        Some(("between_check_and_hold", Next::Hold(pull)))
    }

    fn arrive(&mut self, queue: String, message: String) -> Stop {
        self.logs.entry(queue.clone()).or_default().push(message);
        Some(("between_append_and_wake", Next::Wake(queue)))
    }

    fn go(&mut self, next: Next) -> Stop {
        match next {
            Next::Hold(pull) => {
                if self.closed.contains(&pull.connection) { return None; }
                self.held.push(pull.clone());
                // A message that came before the hold woke no pull.
                return Some(("between_hold_and_recheck", Next::Wake(pull.queue)));
            }
            Next::Wake(queue) => self.keep(|table, pull| pull.queue != queue || !table.look(pull)),
        }
        None
    }

    fn close(&mut self, connection: i64) {
        self.closed.insert(connection);
        self.held.retain(|pull| pull.connection != connection);
    }

    fn keep(&mut self, wanted: impl Fn(&Table, &Pull) -> bool) {
        let held = std::mem::take(&mut self.held);
        self.held = held.into_iter().filter(|pull| wanted(self, pull)).collect();
    }

    // Answer a pull, if there is something for it or its time is up.
    fn look(&self, pull: &Pull) -> bool {
        let messages = self.logs.get(&pull.queue).and_then(|log| log.get(pull.offset..)).unwrap_or(&[]);
        if messages.is_empty() && self.now_ms < pull.deadline_ms { return false; }
        let next = pull.offset + messages.len();
        say(format!("{{\"answer\":{},\"messages\":{:?},\"offset_next\":{}}}", pull.id, messages, next));
        true
    }
}

fn say(line: String) {
    io::stdout().write_all((line + "\n").as_bytes()).unwrap();
}

// A field of a flat line, as it stands there; the dojo writes no letter that would have to be escaped.
fn field(line: &str, name: &str) -> String {
    let rest = line.split(&format!("\"{name}\":")).nth(1).unwrap_or("");
    rest.split([',', '}']).next().unwrap_or("").trim_matches('"').to_string()
}

fn main() {
    let mut table = Table::default();
    for line in io::stdin().lock().lines() {
        let line = line.unwrap();
        let number = |name: &str| field(&line, name).parse::<i64>().unwrap_or(0);
        let (kind, id, connection, queue) = (field(&line, "type"), number("id"), number("connection"), field(&line, "queue"));
        if kind == "reset" { table = Table::default(); }
        table.now_ms = number("now_ms");
        let stop = match kind.as_str() {
            "pull" => {
                let deadline_ms = table.now_ms + number("wait_ms");
                table.pull(Pull { id, connection, queue, offset: number("offset") as usize, deadline_ms })
            }
            "arrive" => table.arrive(queue, field(&line, "message")),
            "tick" => { table.keep(|table, pull| !table.look(pull)); None }
            "close" => { table.close(connection); None }
            "go" => { let next = table.paused.remove(&id).unwrap(); table.go(next) }
            _ => None,
        };
        if let Some((step, next)) = stop {
            table.paused.insert(id, next);
            say(format!("{{\"at\":\"{step}\",\"id\":{id}}}"));
        } else {
            say(format!("{{\"done\":{id}}}"));
        }
    }
}
