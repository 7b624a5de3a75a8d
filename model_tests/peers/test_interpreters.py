"""Programs of a few hundred lines in Go, Rust, Java and JavaScript run the exported law as our engines do.

Each explores it (counts and verdicts are the pinned ones) and follows steps through it for a unit test of a hold table:
the parts of a guard that are false, what may come next, and what is broken, as our own engine says them.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.mark import ParameterSet
from model_tests.support.spec.cases import model_named, quick_if

from longpoll_spec.bounds import named
from longpoll_spec.engines.conform import false_parts
from longpoll_spec.engines.evaluate import evaluate, values_of
from longpoll_spec.engines.manifest import Entry, pinned
from longpoll_spec.engines.python import successors
from longpoll_spec.model import Model
from longpoll_spec.mutants.generated import conjuncts
from longpoll_spec.policy import PRESETS, policy_named
from longpoll_spec.render.export.jani import jani_of
from longpoll_spec.specification import properties_of, specification_of

pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]
HERE: Final = Path(__file__).parent / "interpreters"
READY_S: Final = 400.0
RUN_S: Final = 600.0
ENTRIES: Final = [entry for entry in pinned() if entry.bounds in {"tiny", "small"}]
Command = Sequence[str]


def _go(directory: Path) -> Command:
    program = directory / "law"
    _call(["go", "build", "-mod=readonly", "-buildvcs=false", "-o", str(program), "."], HERE / "go")
    return [str(program)]


def _rust(directory: Path) -> Command:
    """Built where caches are kept, as its library takes longer than the rest."""
    target = _rust_target()
    _call(["cargo", "build", "--release", "--locked", "--quiet"], HERE / "rust", CARGO_TARGET_DIR=str(target))
    return [str(shutil.copy(str(target / "release" / "law"), str(directory / "law")))]


def _rust_target() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "longpoll-tests" / "rust-law"


def _java(directory: Path) -> Command:
    sources = sorted(map(str, (HERE / "java").glob("*.java")))
    _call(["javac", "-encoding", "UTF-8", "-Xlint:all", "-Werror", "-d", str(directory), *sources], HERE)
    return ["java", "-Xmx1g", "-Dstdout.encoding=UTF-8", "-cp", str(directory), "Law"]


def _node(_directory: Path) -> Command:
    return ["node", str(HERE / "node" / "law.mjs")]


MAKERS: Final[Mapping[str, Callable[[Path], Command]]] = {"go": _go, "rust": _rust, "java": _java, "node": _node}
NEEDED: Final = {"go": "go", "rust": "cargo", "java": "javac", "node": "node"}
_READY: dict[str, Command] = {}


def _call(command: Command, directory: Path, **environment: str) -> str:
    found = subprocess.run(
        command,
        cwd=directory,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=READY_S,
        check=False,
    )
    assert found.returncode == 0, f"{command}: {found.stdout[-2000:]} {found.stderr[-2000:]}"
    return found.stdout + found.stderr


@pytest.fixture(params=list(MAKERS))
def language(request: pytest.FixtureRequest) -> str:
    """Each language; a missing tool is reported."""
    name: str = request.param
    if shutil.which(NEEDED[name]) is None:
        pytest.skip(f"INTERPRETER IN {name.upper()} NOT TRIED: no {NEEDED[name]} on PATH")
    return name


@pytest.fixture
def command(language: str, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """The program, made ready at its first use."""
    if language not in _READY:
        _READY[language] = MAKERS[language](tmp_path_factory.mktemp(language))
    return _READY[language]


def _exported(model: Model) -> str:
    return jani_of(model, properties_of(model))


def _run(command: Command, path: Path, *labels: str) -> subprocess.CompletedProcess[str]:
    words = [*command, str(path), *labels]
    return subprocess.run(words, capture_output=True, text=True, encoding="utf-8", timeout=RUN_S, check=False)


def _lines(command: Command, path: Path, *labels: str) -> list[dict[str, Any]]:
    done = _run(command, path, *labels)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _explored(command: Command, text: str, directory: Path) -> dict[str, Any]:
    path = directory / "law.jani"
    path.write_text(text, encoding="utf-8")
    (found,) = _lines(command, path)
    print(f"{found['states'] / found['seconds']:,.0f} states/s")  # noqa: T201 - a measurement
    return {key: value for key, value in found.items() if key != "seconds"}


def _facts(entry: Entry) -> dict[str, Any]:
    verdicts = dict.fromkeys(entry.violated, False) | dict.fromkeys(entry.reached, True)
    verdicts |= dict.fromkeys(entry.holds, True) | dict.fromkeys(entry.unreached, False)
    counts = {"states": entry.distinct_states, "transitions": entry.transitions, "depth": entry.depth}
    return {**counts, "verdicts": verdicts}


def _case(entry: Entry) -> ParameterSet:
    is_quick = entry.bounds == "tiny" and entry.policy in {"strict", "rocketmq-4.9"}
    return pytest.param(entry, marks=() if is_quick else pytest.mark.long, id=f"{entry.policy}-{entry.bounds}")


@pytest.mark.parametrize("entry", [_case(entry) for entry in ENTRIES])
def test_the_counts_and_verdicts_are_the_pinned_ones(entry: Entry, command: Command, tmp_path: Path) -> None:
    """States, transitions, depth, and whether each property is as it must be; the speed is printed."""
    policy = policy_named(entry.policy)
    text = _exported(specification_of(policy, named(entry.bounds, policy)))

    assert _explored(command, text, tmp_path) == _facts(entry)


def test_every_preset_is_compared() -> None:
    assert {(entry.policy, entry.bounds) for entry in ENTRIES} == {
        (policy, bounds) for policy in PRESETS for bounds in ("tiny", "small")
    }
    assert {entry.policy for entry in ENTRIES if not _case(entry).marks} == {"strict", "rocketmq-4.9"}


@pytest.mark.parametrize("policy", quick_if(["strict", "rocketmq-4.9", "strict-clone"], lambda name: name == "strict"))
def test_steps_are_judged_as_our_engine_judges_them(policy: str, command: Command, tmp_path: Path) -> None:
    """Legal and illegal steps at random: which parts of a guard are false, what may come next, what is broken."""
    model = model_named(policy)
    labels, expected = _walked(model, random.Random(policy), 60)
    path = tmp_path / "law.jani"
    path.write_text(_exported(model), encoding="utf-8")

    assert {bool(line["false"]) for line in expected} == {True, False}
    assert _lines(command, path, *labels) == expected


def _walked(model: Model, chance: random.Random, steps: int) -> tuple[list[str], list[dict[str, Any]]]:
    """A run, with what is to be said after each step: half of the steps are legal, the others any."""
    document = json.loads(_exported(model))
    edges = {edge["action"]: edge["guard"]["exp"] for edge in document["automata"][0]["edges"]}
    step, state = successors(model), model.initial
    labels: list[str] = []
    said: list[dict[str, Any]] = []
    for turn in range(steps):
        possible = {model.actions[index].label: (index, after) for index, after in step(state)}
        action = chance.choice([model.actions[index] for index, _ in possible.values()] if turn % 2 else model.actions)
        false = {id(part) for part in false_parts(model, action, state)}
        told = _parts(edges[action.label])
        refused = [text for part, text in zip(conjuncts(action), told, strict=True) if id(part) in false]
        state = state if refused else possible[action.label][1]
        labels.append(action.label)
        said.append({"step": action.label, "false": refused, **_situation(model, state)})
    return labels, said


def _situation(model: Model, state: tuple[int, ...]) -> dict[str, Any]:
    values = values_of(model, state)
    always = [item for item in properties_of(model) if item.kind != "sometimes"]
    return {
        "may": [action.label for action in model.actions if evaluate(action.guard, values)],
        "broken": [item.name for item in always if not evaluate(item.term, values)],
    }


def _parts(guard: Any) -> list[str]:
    """The operands at a guard's top, in the file's words."""
    return [re.sub(r"^\((.*)\)$", r"\1", _text(part)) for part in _joined(guard, "∧")]


def _joined(expression: Any, sign: str) -> list[Any]:
    if not isinstance(expression, dict) or expression["op"] != sign:
        return [expression]
    return [*_joined(expression["left"], sign), *_joined(expression["right"], sign)]


def _text(expression: Any) -> str:
    match expression:
        case {"op": "∧" | "∨" as sign}:  # noqa: RUF001 - JANI's signs
            return f"({f' {sign} '.join(map(_text, _joined(expression, sign)))})"
        case {"op": "¬", "exp": inner}:
            return f"¬{_text(inner)}"
        case {"op": "ite", "if": condition, "then": then, "else": otherwise}:
            return f"(if {_text(condition)} then {_text(then)} else {_text(otherwise)})"
        case {"op": sign, "left": left, "right": right}:
            return f"({_text(left)} {sign} {_text(right)})"
    return str(expression)


def _edge_of(document: Any, label: str) -> Any:
    return next(edge for edge in document["automata"][0]["edges"] if edge["action"] == label)


def _forget_the_recheck(document: Any) -> None:
    for request in range(2):
        found = _edge_of(document, f"hold({request})")["destinations"][0]
        found["assignments"] = [each for each in found["assignments"] if each["ref"] != f"recheck_due_{request}"]


def _exchange_the_branches(document: Any) -> None:
    for each in _edge_of(document, "pull_read(1)")["destinations"][0]["assignments"]:
        if isinstance(each["value"], dict) and each["value"]["op"] == "ite":
            each["value"]["then"], each["value"]["else"] = each["value"]["else"], each["value"]["then"]


PLANTED: Final = {
    "hold forgets that a recheck is due": (_forget_the_recheck, {"no_lost_wakeup": False, "woken_within": False}),
    "a read takes the other case": (_exchange_the_branches, {}),
}


@pytest.mark.parametrize("slip", quick_if(PLANTED, lambda slip: slip == "a read takes the other case"))
def test_a_planted_slip_is_seen(slip: str, command: Command, tmp_path: Path) -> None:
    """One slip in the file: other counts, and where it breaks a property that property, or a refusal to go on."""
    plant, broken = PLANTED[slip]
    document = json.loads(_exported(model_named("strict")))
    plant(document)
    path = tmp_path / "law.jani"
    path.write_text(json.dumps(document), encoding="utf-8")
    done = _run(command, path)

    if done.returncode:
        assert not broken, done.stderr
        assert "not in its range" in done.stderr
        return
    found = json.loads(done.stdout)
    entry = next(each for each in ENTRIES if (each.policy, each.bounds) == ("strict", "tiny"))
    assert found["states"] != entry.distinct_states
    assert broken.items() <= found["verdicts"].items()


@pytest.mark.parametrize("text", ['{"metadata": {"version": "2"}}', '{"metadata": '])
def test_what_is_no_such_file_is_refused(text: str, command: Command, tmp_path: Path) -> None:
    path = tmp_path / "law.jani"
    path.write_text(text)
    done = _run(command, path)

    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.strip()


def test_an_action_that_is_not_there_is_told(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "law.jani"
    path.write_text(_exported(model_named("strict")), encoding="utf-8")
    done = _run(command, path, "hold(9)")

    assert (done.returncode, "hold(9)" in done.stderr) == (2, True)


def test_a_unit_test_of_a_hold_table_asks_the_law(language: str, command: Command, tmp_path: Path) -> None:
    """Each program's tests pass with the spec of RocketMQ 4.9, and fail with ours, which has no such race."""
    tests = {
        "go": ["go", "test", "-count=1", "."],
        "rust": ["cargo", "test", "--release", "--locked"],
        "java": [*command[:-1], "HoldTableTest"],
        "node": ["node", "--test"],
    }
    codes = []
    for policy in ("rocketmq-4.9", "strict"):
        path = tmp_path / f"{policy}.jani"
        path.write_text(_exported(model_named(policy)), encoding="utf-8")
        environment = {**os.environ, "LAW": str(path), "CARGO_TARGET_DIR": str(_rust_target())}
        done = subprocess.run(
            tests[language], cwd=HERE / language, env=environment, capture_output=True, timeout=READY_S, check=False
        )
        codes.append(done.returncode == 0)

    assert codes == [True, False]
