r"""Observed runs as a TLA+ module over the exported specification: TLC reports how many steps of each it allows.

A second opinion on `engines.conform`, by the usual pattern of trace validation (Cirstea, Kuppe, Loillier and Merz,
Validating traces of distributed programs against TLA+ specifications, SEFM 2024). One more variable chooses the run, so
one start of TLC checks many. `low` steps have happened and those in `ahead`; `Open` has the steps that may come next by
their times. The progress is kept in TLC's registers, one per run, and printed at the end.

Why a run does not conform: see `engines.conform`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from longpoll_spec.model import Model, Order, SeenStep
from longpoll_spec.render.notation import identifier, name_of, parameters_of

TOLD: Final = "placed"
"""The prefix of the line that TLC prints: <<TOLD, <<steps of run 1, steps of run 2, ...>>>>."""


def traces_name_of(model: Model) -> str:
    """The name of the module; it extends the one of `render.export.tla`."""
    return f"{name_of(model)}_traces"


def tla_traces_of(model: Model, runs: Sequence[Order], hidden: Iterable[str] = ()) -> str:
    """The module; no run has more than `model.OPEN_MAX` steps that may all come next.

    `hidden` are unobserved actions, or instances by their labels.
    """
    assert all(len(run.open_at) == len(run.steps) for run in runs), "orders that can be followed"
    name = traces_name_of(model)
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


def tla_traces_configuration_of(model: Model) -> str:
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


def _tuple(parts: Iterable[str]) -> str:
    return f"<<{', '.join(parts)}>>"


def _set(parts: Iterable[str]) -> str:
    return f"{{{', '.join(parts)}}}"
