"""Runs TLC on an exported model, and reads its counts and the first violated invariant.

Package registries do not have TLC, so the environment variable `TLA2TOOLS` names its jar or class path. Export: see
`render.export.tla`. Expected numbers: see `engines.manifest`.

Observed runs are a second module over the exported one: TLC reports how many steps of each it allows. This is the usual
pattern of trace validation (Cirstea, Kuppe, Loillier and Merz, SEFM 2024). One more variable chooses the run, so one
start of TLC checks many. `low` steps have happened and those in `ahead`; `Open` has the steps that may come next by
their times. The progress is kept in TLC's registers, one per run, and printed at the end.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

from longpoll_spec.model import Model, Order, SeenStep
from longpoll_spec.render.export.tla import tla_of
from longpoll_spec.render.notation import identifier, name_of, parameters_of

CLASS_PATH: Final = "TLA2TOOLS"
TLC_START_STATES: Final = 1
"""Difference between TLC's counts and ours: it generates its initial state too, and counts its depth in states."""
COMPLETE: Final = r"^(Model checking completed\. No error has been found\.)"
NO_STATISTICS: Final = "NO_STATISTICS\n"
"""TLC's switch against sending statistics, in a file below its home directory."""
TOLD: Final = "placed"
"""The prefix of the line that TLC prints: <<TOLD, <<steps of run 1, steps of run 2, ...>>>>."""


@frozen
class TlcRun:
    """The result of a complete TLC run, in our counts."""

    distinct_states: int
    transitions: int
    depth: int


@frozen
class TlcViolation:
    """Where TLC stopped: the violated invariant or property of steps, and the length of the run."""

    invariant: str
    length: int


def why_no_tlc() -> str | None:
    """Returns why TLC cannot run here, or None."""
    if not os.environ.get(CLASS_PATH):
        return f"set {CLASS_PATH} to the class path of TLC, which no package registry has"
    return None if shutil.which("java") else "java not found"


def run_tlc(name: str, module: str, configuration: str, directory: Path) -> TlcRun | TlcViolation:
    """Check a module on one thread, breadth-first, so that a violation is a nearest one.

    Raises `RuntimeError` with TLC's last lines without a result.
    """
    (directory / f"{name}.tla").write_text(module)
    (directory / f"{name}.cfg").write_text(configuration)
    return _read(_tlc(name, directory))


def keeps(name: str, module: str, parameters: Mapping[str, int], wanted: str, directory: Path) -> bool:
    """Whether every run of a specification `Tried` in the module keeps a temporal property.

    Raises `RuntimeError` as `run_tlc` does.
    """
    (directory / f"{name}.tla").write_text(module)
    constants = [f"CONSTANT {parameter} = {value}" for parameter, value in parameters.items()]
    lines = ["SPECIFICATION Tried", *constants, "CHECK_DEADLOCK FALSE", f"PROPERTY {wanted}"]
    (directory / f"{name}.cfg").write_text("\n".join([*lines, ""]))
    said = _tlc(name, directory)
    if re.search(r"^Error: Temporal propert(?:y|ies) .*violated", said, re.MULTILINE):
        return False
    _found(COMPLETE, said)
    return True


def placed_by_tlc(model: Model, runs: Sequence[Order], hidden: Iterable[str], directory: Path) -> list[int]:
    """Returns how many steps of each run the specification can take, by TLC; one start for all of them.

    Raises `RuntimeError` as `run_tlc` does.
    """
    (directory / f"{name_of(model)}.tla").write_text(tla_of(model, ()))
    name = _traces_name_of(model)
    (directory / f"{name}.tla").write_text(_traces_of(model, runs, hidden))
    (directory / f"{name}.cfg").write_text(_traces_configuration_of(model))
    said = _tlc(name, directory)
    _found(COMPLETE, said)
    (told,) = _found(rf'^<<\s*"{TOLD}",\s*<<([\d,\s]*)>>\s*>>', said)
    return [int(number) for number in told.split(",")]


def only_invariants(configuration: str, names: Iterable[str]) -> str:
    """Returns the configuration with only these invariants, and no property of steps."""
    kept = [line for line in configuration.splitlines() if not re.search("INVARIANT|^PROPERTY", line)]
    return "\n".join([*kept, *(f"INVARIANT {name}" for name in names), ""])


def _tlc(name: str, directory: Path) -> str:
    home = directory / "home"
    (home / ".tlaplus").mkdir(parents=True, exist_ok=True)
    (home / ".tlaplus" / "esc.txt").write_text(NO_STATISTICS)
    options: Sequence[str] = ("-workers", "1", "-noGenerateSpecTE", "-metadir", "states", name)
    java = ("java", f"-Duser.home={home}", "-XX:+UseParallelGC", "-cp", _class_path(os.environ))
    done = subprocess.run([*java, "tlc2.TLC", *options], cwd=directory, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def _class_path(environment: Mapping[str, str]) -> str:
    """Absolute, because TLC runs in the directory of the module."""
    return os.pathsep.join(str(Path(part).absolute()) for part in environment[CLASS_PATH].split(os.pathsep) if part)


def _read(said: str) -> TlcRun | TlcViolation:
    violated = re.search(
        r"^Error: (?:Invariant|Action property) (\w+) is violated( by the initial state)?", said, re.MULTILINE
    )
    if violated is not None:
        shown = 1 if violated[2] else len(re.findall(r"^State \d+: ", said, re.MULTILINE))
        return TlcViolation(violated[1], shown - 1)
    _found(COMPLETE, said)
    generated, distinct = _found(r"^(\d+) states generated, (\d+) distinct states found, 0 states left", said)
    (depth,) = _found(r"^The depth of the complete state graph search is (\d+)\.", said)
    return TlcRun(int(distinct), int(generated) - TLC_START_STATES, int(depth) - TLC_START_STATES)


def _found(pattern: str, said: str) -> tuple[str, ...]:
    match = re.search(pattern, said, re.MULTILINE)
    if match is None:
        raise RuntimeError(f"TLC did not finish: {said[-600:]}")
    return match.groups()


def _traces_name_of(model: Model) -> str:
    """The name of the module; it extends the one of `render.export.tla`."""
    return f"{name_of(model)}_traces"


def _traces_of(model: Model, runs: Sequence[Order], hidden: Iterable[str] = ()) -> str:
    """The module; no run has more than `model.OPEN_MAX` steps that may all come next.

    `hidden` are unobserved actions, or instances by their labels.
    """
    assert all(len(run.open_at) == len(run.steps) for run in runs), "orders that can be followed"
    name = _traces_name_of(model)
    return "\n".join(
        (
            f"---- MODULE {name} ----",
            f"\\* Which of these runs does the specification allow? Check it with TLC, on one thread: {name}",
            f"EXTENDS {name_of(model)}, Sequences, FiniteSets, TLC",
            "",
            "VARIABLES run, low, ahead",
            "",
            *_runs(runs),
            *_dispatch(model),
            *_next(model, set(hidden)),
            "====",
            "",
        )
    )


def _traces_configuration_of(model: Model) -> str:
    """The `.cfg` of the module."""
    constants = [f"CONSTANT {name} = {value}" for name, value in parameters_of(model).items()]
    rest = ("SPECIFICATION SeenSpec", "CHECK_DEADLOCK FALSE", "CONSTRAINT Noted", "POSTCONDITION Told")
    return "\n".join([*rest[:1], *constants, *rest[1:], ""])


def _runs(runs: Sequence[Order]) -> Iterator[str]:
    yield "\\* The steps of each run: their possible actions, and the known part of the state after each."
    yield "Steps == <<"
    yield from _separated(f"  {_tuple(_step(step) for step in run.steps)}" for run in runs)
    yield ">>"
    yield "\\* For each run, after n - 1 steps: the steps that may come next by their times."
    yield "Open == <<"
    yield from _separated(
        f"  {_tuple(_set(str(number + 1) for number in each) for each in run.open_at)}" for run in runs
    )
    yield ">>"
    yield ""


def _step(step: SeenStep) -> str:
    known = (f'<<"{name}", {value}>>' for name, value in step.known)
    may = (f'"{identifier(label)}"' for label in step.actions)
    return f"[may |-> {_set(may)}, known |-> {_tuple(known)}]"


def _dispatch(model: Model) -> Iterator[str]:
    yield "Take(name) =="
    for action in model.actions:
        name = identifier(action.label)
        yield f'  \\/ name = "{name}" /\\ {name}'
    yield ""
    yield "After(name) =="
    for number, variable in enumerate(model.variables):
        word = "[]" if number else "CASE"
        value = f"(IF {variable.name}' THEN 1 ELSE 0)" if variable.truth else f"{variable.name}'"
        yield f'  {word} name = "{variable.name}" -> {value}'
    yield ""


def _next(model: Model, hidden: set[str]) -> Iterator[str]:
    unseen = [
        identifier(action.label) for action in model.actions if not hidden.isdisjoint((action.name, action.label))
    ]
    yield from (
        "Placed(number) ==",
        "  LET done == ahead \\cup {number}",
        "      reached == CHOOSE n \\in low..(low + Cardinality(done)) :",
        "        (\\A i \\in (low + 1)..n : i \\in done) /\\ (n + 1) \\notin done",
        "  IN low' = reached /\\ ahead' = {i \\in done : i > reached}",
        "",
        "Seen ==",
        "  /\\ low < Len(Steps[run])",
        "  /\\ \\E number \\in Open[run][low + 1] \\ ahead :",
        "       LET step == Steps[run][number] IN",
        "       /\\ \\E name \\in step.may : Take(name)",
        "       /\\ \\A i \\in DOMAIN step.known : After(step.known[i][1]) = step.known[i][2]",
        "       /\\ Placed(number)",
        "",
        "Unseen ==",
        *(f"  \\/ {name} /\\ UNCHANGED <<low, ahead>>" for name in unseen or ["FALSE"]),
        "",
        "SeenInit == Init /\\ run \\in DOMAIN Steps /\\ low = 0 /\\ ahead = {}",
        "SeenNext == UNCHANGED run /\\ (Seen \\/ Unseen)",
        "SeenSpec == SeenInit /\\ [][SeenNext]_<<vars, run, low, ahead>>",
        "",
        "ASSUME \\A number \\in DOMAIN Steps : TLCSet(number, 0)",
        "Noted ==",
        "  LET placed == low + Cardinality(ahead)",
        "  IN IF placed > TLCGet(run) THEN TLCSet(run, placed) ELSE TRUE",
        f'Told == PrintT(<<"{TOLD}", [number \\in DOMAIN Steps |-> TLCGet(number)]>>)',
        "",
    )


def _separated(lines: Iterable[str]) -> Iterator[str]:
    held = list(lines)
    yield from (f"{line}," for line in held[:-1])
    yield from held[-1:]


def _set(parts: Iterable[str]) -> str:
    return f"{{{', '.join(parts)}}}"


def _tuple(parts: Iterable[str]) -> str:
    return f"<<{', '.join(parts)}>>"
