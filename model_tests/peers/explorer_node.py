"""Runs the explorer's interpreter under Node: explorations of specifications, and tokens."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

from longpoll_spec.render.export.explorer.page import part

RUN_S: Final = 1500.0
ASKS: Final = """
const data = JSON.parse(require("fs").readFileSync(process.argv[2], "utf8"));
const answers = JSON.parse(require("fs").readFileSync(process.argv[3], "utf8")).map((asked) => {
  try {
    if (asked.places) return { places: Law.places(data) };
    if (asked.walk !== undefined) {
      const machine = new Law.Machine(data, asked.law), run = [];
      let state = machine.initial, drawn = asked.walk;
      for (let step = 0; step < asked.steps; step += 1) {
        const may = machine.enabled(state);
        if (!may.length) break;
        drawn = (Math.imul(drawn, 1103515245) + 12345) >>> 0;
        run.push(may[(drawn >>> 8) % may.length]);
        state = machine.after(state, run.at(-1));
      }
      return { token: Law.tokenOf(data.laws[asked.law], run), run, last: state };
    }
    if (asked.token !== undefined) {
      const named = Law.readToken(data, asked.token);
      const states = new Law.Machine(data, named.law).follow(named.run);
      return { ...named, last: states.at(-1), again: Law.tokenOf(data.laws[named.law], named.run, named.property) };
    }
    const machine = new Law.Machine(data, asked.law, asked.slip ?? null);
    const { findings, ...found } = Law.explore(machine, { limit: asked.limit ?? Infinity });
    const named = machine.properties.map((item, at) => [item, findings.get(at)]).filter(([, run]) => run);
    const tokens = named.map(([item, run]) => [item.name, Law.tokenOf(data.laws[asked.law], run, item.name)]);
    return { ...found, runs: Object.fromEntries(named.map(([item, run]) => [item.name, run.length])),
      tokens: Object.fromEntries(tokens), kinds: Object.fromEntries(named.map(([item]) => [item.name, item.kind])) };
  } catch (error) {
    return { error: error.message };
  }
});
console.log(JSON.stringify(answers));
"""


def asked_of_node(
    directory: Path, data: str, questions: list[dict[str, Any]], script: str = ""
) -> list[dict[str, Any]]:
    """Return the interpreter's answers, one for each question; `script` replaces the interpreter's source.

    Each question is a dict of one of these forms; "law" is the index of a specification in `data`:

    - {"law": number} explores the specification. With "slip", the index of a mutant or the names of changes by hand,
      it explores the changed specification.
    - {"token": text} follows a token.
    - {"law": number, "walk": seed, "steps": number} takes a random run.
    - {"places": True} lists the places that a user may change.
    """
    program, given, asked = (directory / name for name in ("explore.js", "data.json", "asked.json"))
    program.write_text((script or part("law.js")) + ASKS)
    given.write_text(data)
    asked.write_text(json.dumps(questions))
    command = ["node", str(program), str(given), str(asked)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers
