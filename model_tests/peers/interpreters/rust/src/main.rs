//! Explores a law (`law FILE`), or follows steps through it (`law FILE LABEL...`), and prints JSON lines.

use law::Law;
use serde_json::json;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Err(why) = run(&words) {
        eprintln!("{why}");
        std::process::exit(2);
    }
}

fn run(words: &[String]) -> Result<(), String> {
    let law = Law::load(&words[0])?;
    if words.len() == 1 {
        let found = law.explore()?;
        println!("{}", json!({"states": found.states, "transitions": found.transitions, "depth": found.depth,
            "seconds": found.seconds, "verdicts": found.verdicts}));
    }
    let mut oracle = law.oracle();
    for step in &words[1..] {
        let refused: Vec<String> = oracle.did(step)?.into_iter().map(str::to_string).collect();
        println!("{}", json!({"step": step, "false": refused, "may": oracle.may(), "broken": oracle.broken()}));
    }
    Ok(())
}
