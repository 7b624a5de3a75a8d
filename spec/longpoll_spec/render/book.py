"""The specification as a book: a page for each action and each feature, and any two presets side by side.

The pages are Markdown, for Sphinx and MyST. They are derived from the specification like
docs/spec.md, which has it all on one page. Which actions read and write which variable, and which properties an action
could break, is computed from the terms of each preset without features, and with each feature. Whether an action does
break one is not checked. The results of mutants are passed in (`Slipped`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from itertools import combinations
from typing import Final

from attrs import frozen

from longpoll_spec.bounds import ASPECTS, EXPLORATIONS, Bounds
from longpoll_spec.model import ACTION_NAMES, Action, Model, Property
from longpoll_spec.policy import PRESETS, Policy
from longpoll_spec.render.conditions import PLAIN, condition_of, samples
from longpoll_spec.render.differences import Difference, aligned, difference
from longpoll_spec.render.java_breakpoints import stopped_at
from longpoll_spec.render.notation import guard_lines, reader_of, stem
from longpoll_spec.render.spec_page import (
    OPEN,
    action_lines,
    action_told,
    kinds_of_action,
    model_of,
    named_terms,
    opened,
    places_text,
    policies,
)
from longpoll_spec.specification import properties_of, specification_of
from longpoll_spec.state import Variable, state_of
from longpoll_spec.terms import TRUE, Bool, Term, changes, nodes

Lines = Iterator[str]


def toctree(names: Iterable[str]) -> Lines:
    """The list of pages in Sphinx's sidebar."""
    yield from ("", "```{toctree}", ":hidden:", "", *names, "```")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Lines:
    """A table; bars in cells are escaped."""
    yield f"| {' | '.join(heads)} |"
    yield f"| {' | '.join('---' for _ in heads)} |"
    yield from (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)
    yield ""


def raw(html: str) -> Lines:
    """HTML as it is, in an area that scrolls."""
    yield from ("```{raw} html", f'<div class="lp-scroll" tabindex="0" role="region" aria-label="Formula">{html}</div>')
    yield from ("```", "")


def links(names: Iterable[str], folder: str) -> str:
    """Links to pages of a folder, by their names; a remark if there are none."""
    return ", ".join(f"[`{name}`]({folder}{name}.md)" for name in names) or "none"


def two(pairs: Iterable[tuple[str, str]], heads: tuple[str, str]) -> Lines:
    """Two texts side by side; lines that differ are marked."""
    rows = "".join(
        f"<tr{'' if left == right else ' class=lp-other'}>"
        f"<td><code>{escape(left)}</code></td><td><code>{escape(right)}</code></td></tr>"
        for left, right in pairs
    )
    head = "".join(f"<th scope=col>{escape(each)}</th>" for each in heads)
    yield from raw(f'<table class="lp-sides"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>')


@frozen
class ReadsAndWrites:
    """The variables that one action reads and writes, by their names in the book."""

    reads: frozenset[str]
    writes: frozenset[str]


def shown_name(variable: str) -> str:
    """A variable's name in the book: the same for every request and every queue."""
    return f"{stem(variable)}[r]" if stem(variable) != variable else re.sub(r"_q\d+$", "", variable)


def variables_in(terms: Iterable[Term]) -> set[str]:
    """The variables in these terms."""
    return {str(node.args[0]) for node in nodes(*terms) if node.op == "var"}


def written_by(action: Action) -> set[str]:
    """The variables that an action's effect may change."""
    return set(changes(action.effect))


def read_by(action: Action) -> set[str]:
    """The variables that an action's guard or its effect's new values read."""
    return variables_in([action.guard, *(action.effect[name] for name in written_by(action))])


def worlds() -> Iterator[tuple[Policy, Bounds]]:
    """Every preset without features, and with each."""
    for policy in PRESETS.values():
        yield policy, OPEN
        yield from ((policy, opened(bounds)) for bounds in EXPLORATIONS.values())


@cache
def reads_and_writes() -> Mapping[str, ReadsAndWrites]:
    """Action -> what it reads and writes in some preset or with some feature."""
    reads: dict[str, set[str]] = {}
    writes: dict[str, set[str]] = {}
    for policy, bounds in worlds():
        for action in model_of(policy, bounds).actions:
            reads.setdefault(action.name, set()).update(map(shown_name, read_by(action)))
            writes.setdefault(action.name, set()).update(map(shown_name, written_by(action)))
    return {name: ReadsAndWrites(frozenset(reads[name]), frozenset(writes[name])) for name in reads}


@cache
def statements(policy: Policy, bounds: Bounds) -> tuple[Property, ...]:
    """The properties of a policy under these bounds, for two requests and any number of messages."""
    return tuple(properties_of(specification_of(policy, opened(bounds))))


def breakable(action: Action, statement: Property, read: set[str]) -> bool:
    """Whether an action could make a statement false: it writes a variable that is read, or is the forbidden step.

    Args:
        action: The action.
        statement: What must hold.
        read: The variables that the statement's own part about a state reads.
    """
    spoken_of = any(label == action.label for label, _ in statement.closing)
    return spoken_of or not read.isdisjoint(written_by(action))


@cache
def broken_by() -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """Action -> property that it could break -> the presets in which that is so."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for policy in PRESETS.values():
        for bounds in (PLAIN, *EXPLORATIONS.values()):
            actions = specification_of(policy, opened(bounds)).actions
            for each in statements(policy, bounds):
                if each.kind == "sometimes" or each.by_construction:
                    continue
                read = variables_in([each.here])
                for action in actions:
                    if breakable(action, each, read):
                        found.setdefault(action.name, {}).setdefault(each.name, {})[policy.name] = None
    return {name: {each: tuple(presets) for each, presets in those.items()} for name, those in found.items()}


def policy_pages() -> dict[str, Lines]:
    """Path in the book -> lines."""
    pairs = combinations(PRESETS.values(), 2)
    made = {f"differences/{_pair(*pair)}.md": _sides(difference(*pair)) for pair in pairs}
    return made | {"policies.md": policies("# Policies"), "differences/index.md": _differences()}


def _pair(first: Policy, second: Policy) -> str:
    return f"{first.name}--{second.name}"


def _differences() -> Lines:
    yield from ("# Differences", "", "Any two policies, with knobs set otherwise or not, are told apart by the command")
    yield from ("", "```text", "longpoll policies strict rocketmq-4.9+recheck_after_hold=after_insert", "```", "")
    yield from ("The presets, two by two:", "")
    pairs = list(combinations(PRESETS.values(), 2))
    yield from (f"- [{one.name} and {other.name}]({_pair(one, other)}.md)" for one, other in pairs)
    yield from toctree(_pair(*pair) for pair in pairs)


def _sides(found: Difference) -> Lines:
    one, other = found.first.name, found.second.name
    yield from (f"# {one} and {other}", "")
    yield from table(("knob", one, other), ((f"`{knob}`", left, right) for knob, left, right in found.knobs))
    for each in found.actions:
        yield from (f"## {each.action}{f', with {each.aspect}' if each.aspect else ''}", "")
        yield from two(each.pairs, (one, other))


SEVERAL: Final = {
    "queues": "Several queues share one dispatcher and one scanner.",
    "tags": "A message has a tag, and a pull wants one.",
}
"""The features that are switched on by number."""
WORLDS: Final[Mapping[str, Bounds]] = {
    **EXPLORATIONS,
    "lateness": Bounds("lateness", requests=2, messages=1, aspects=frozenset({"lateness"})),
}
"""Each feature -> bounds with it. `lateness` finds bounds on answers; no exploration of it is pinned."""


@frozen
class Slipped:
    """One mutant, and its result."""

    action: str
    what: str
    policy: str
    bounds: str
    broken: str
    """The property that a run breaks, or another difference."""
    steps: int | None
    proof: str


def pages(slips: Sequence[Slipped]) -> dict[str, str]:
    """Path in the book -> text."""
    made = {
        "state.md": _state(),
        "properties.md": _properties(),
    }
    made |= {f"actions/{name}.md": _action(name, slips) for name in _names()}
    made |= {f"aspects/{name}.md": _aspect(name) for name in _aspect_names()} | policy_pages()
    made["actions/index.md"] = _actions()
    made["aspects/index.md"] = _aspects()
    made["index.md"] = _index()
    return {place: "\n".join(lines) + "\n" for place, lines in made.items()}


def _names() -> list[str]:
    return [name for name in ACTION_NAMES if name in reads_and_writes()]


def _index() -> Lines:
    yield from ("# The specification as a book", "")
    yield (
        "Generated from the specification, like [the law in full](../spec.md), which has all of it on one page. "
        "Results: [findings](../findings.md)."
    )
    yield ""
    chapters = {
        "state": "The state: each variable, and the actions that read and write it.",
        "actions/index": "The actions, one page each.",
        "aspects/index": "The features, one page each.",
        "properties": "The properties, as formulas.",
        "policies": "The knobs of every preset side by side.",
        "differences/index": "Two policies side by side, action by action.",
    }
    yield from (f"- [{name.partition('/')[0].capitalize()}]({name}.md): {said}" for name, said in chapters.items())
    yield ""
    yield "`r` is the acting request, `s` any request."
    yield from toctree(chapters)


def _state() -> Lines:
    yield from ("# State", "", "`[r]` marks one for each request.", "")
    found: dict[str, Variable] = {}
    for policy, bounds in samples():
        for variable in state_of(policy, bounds).variables:
            found.setdefault(shown_name(variable.name), variable)
    for shown, variable in found.items():
        known = reads_and_writes()
        exists = condition_of(lambda policy, bounds, shown=shown: shown in _variables(policy, bounds))  # type: ignore[misc]
        yield from (f"## `{shown}`", "", variable.sentence, "")
        yield f"- exists: {exists.text}"
        yield f"- read by {links((name for name in _names() if shown in known[name].reads), 'actions/')}"
        yield f"- written by {links((name for name in _names() if shown in known[name].writes), 'actions/')}"
        yield ""


@cache
def _variables(policy: Policy, bounds: Bounds) -> frozenset[str]:
    return frozenset({shown_name(variable.name) for variable in state_of(policy, bounds).variables})


def _actions() -> Lines:
    yield from (
        "# Actions",
        "",
        "An action is enabled where its guard holds; its effect happens atomically.",
    )
    yield ""
    rows = ((f"[`{name}`]({name}.md)", _sentences(name)[0], _presets(name)) for name in _names())
    yield from table(("action", "what it does", "in"), rows)
    yield from toctree(_names())


def _worlds(name: str) -> Iterator[tuple[str, Bounds]]:
    if any(action_lines(name, policy, OPEN) for policy in PRESETS.values()):
        yield "", OPEN
        return
    for aspect, bounds in WORLDS.items():
        if any(action_lines(name, policy, opened(bounds)) for policy in PRESETS.values()):
            yield aspect, opened(bounds)


def _sentences(name: str) -> list[str]:
    found = [
        action.sentence
        for _, bounds in _worlds(name)
        for policy in PRESETS.values()
        for action in kinds_of_action(model_of(policy, bounds), name)
    ]
    return list(dict.fromkeys(found))


def _presets(name: str) -> str:
    found = [
        each for _, bounds in _worlds(name) for each, policy in PRESETS.items() if action_lines(name, policy, bounds)
    ]
    return ", ".join(dict.fromkeys(found)) if len(set(found)) < len(PRESETS) else "every preset"


def _action(name: str, slips: Sequence[Slipped]) -> Lines:
    yield from (f"# {name}", "")
    for sentence in _sentences(name):
        yield from (sentence, "")
    yield f"- in RocketMQ: {places_text(name)}"
    yield from (f"- a thread of {each}" for each in stopped_at(name))
    exists = condition_of(lambda policy, bounds: bool(model_of(policy, bounds).named(name)))
    yield f"- exists: {exists.text}"
    yield f"- reads: {_marked(reads_and_writes()[name].reads)}"
    yield f"- writes: {_marked(reads_and_writes()[name].writes)}"
    yield ""
    for aspect, bounds in _worlds(name):
        yield from _texts(name, aspect, bounds)
    yield from _by_aspects(name)
    yield from _could_break(name)
    yield from _slipped(name, slips)


def _marked(names: Iterable[str]) -> str:
    return ", ".join(f"`{each}`" for each in sorted(names)) or "nothing"


def _texts(name: str, aspect: str, bounds: Bounds) -> Lines:
    groups: dict[tuple[str, ...], list[Policy]] = {}
    for policy in PRESETS.values():
        lines = action_lines(name, policy, bounds)
        if lines:
            groups.setdefault(lines, []).append(policy)
    for alike in groups.values():
        model = model_of(alike[0], bounds)
        whose = ", ".join(policy.name for policy in alike) if len(groups) > 1 else "every preset that has it"
        yield from (f"## In {whose}{f', with {aspect}' if aspect else ''}", "")
        for action in kinds_of_action(model, name):
            head, *rest = action_told(model, action)[1:]
            yield from (f"### {head}" if len(kinds_of_action(model, name)) > 1 else "", "")
            yield from ("```text", head, *rest, "```", "")
        if name == "tick" and any(policy.tick == "maximal_progress" for policy in alike):
            yield from ("Under maximal progress it waits besides until no urgent action can happen.", "")


def _by_aspects(name: str) -> Lines:
    strict = PRESETS["strict"]
    before = action_lines(name, strict, OPEN)
    found = [each for each, size in WORLDS.items() if action_lines(name, strict, opened(size)) not in ((), before)]
    if before and found:
        yield from ("## With an aspect", "")
        listed = ", ".join(f"[{each}](../aspects/{each}.md)" for each in found)
        yield from (f"In `strict` it differs with {listed}.", "")


def _could_break(name: str) -> Lines:
    found = broken_by().get(name, {})
    yield from ("## Properties that it could break", "")
    yield (
        "It writes variables that they read, or they are about this step; exploring and proofs show whether it does. "
        "Properties that hold vacuously are left out."
    )
    yield ""
    for each, presets in found.items():
        where = "every preset" if len(presets) == len(PRESETS) else ", ".join(presets)
        yield f"- [`{each}`](../properties.md#{each}) ({where})"
    yield from ("" if found else "None.", "")


def _slipped(name: str, slips: Sequence[Slipped]) -> Lines:
    own = [slip for slip in slips if slip.action == name]
    yield from ("## Slips", "")
    if not own:
        yield from ("No mutant of this action is pinned.", "")
        return
    yield from ("The results of small mistakes in it ([the zoo](../../zoo.md) describes how they are found).", "")
    rows = (
        (
            slip.what,
            f"`{slip.policy}`",
            f"{slip.broken}{f', {slip.steps} steps' if slip.steps is not None else ''}"
            + (f" (bounds `{slip.bounds}`)" if slip.bounds else ""),
            slip.proof,
        )
        for slip in own
    )
    yield from table(("slip", "policy", "exploring says", "the proof says"), rows)


def _aspect_names() -> list[str]:
    return [name for name in WORLDS if name in ASPECTS or name in SEVERAL]


def _aspects() -> Lines:
    names = _aspect_names()
    yield from ("# Aspects", "", "Each is explored alone, and all together are proved.", "")
    yield from ("Lateness only measures: its counts replace the properties in ticks.", "")
    said = {**ASPECTS, **SEVERAL}
    yield from table(("aspect", "what it adds to the model"), ((f"[{name}]({name}.md)", said[name]) for name in names))
    yield from toctree(names)


def _aspect(name: str) -> Lines:
    bounds = opened(WORLDS[name])
    said = {**ASPECTS, **SEVERAL}
    yield from (f"# {name}", "", said[name], "")
    plain: dict[str, Variable] = {}
    after: dict[str, Variable] = {}
    for policy in PRESETS.values():
        plain |= {shown_name(each.name): each for each in state_of(policy, OPEN).variables}
        after |= {shown_name(each.name): each for each in state_of(policy, bounds).variables}
    new = [(f"`{shown}`", variable.sentence) for shown, variable in after.items() if shown not in plain]
    if new:
        yield from ("## Variables", "")
        yield from table(("variable", "what it is"), new)
    alone = [each for each in _names() if ("", OPEN) not in list(_worlds(each)) and name in dict(_worlds(each))]
    if alone:
        yield from ("## Actions that exist only so", "", f"{links(alone, '../actions/')}", "")
    yield from _own_properties(name)
    strict = PRESETS["strict"]
    yield from ("## What changes in strict", "")
    changed = False
    for each in _names():
        before, text = action_lines(each, strict, OPEN), action_lines(each, strict, bounds)
        if before and text and before != text:
            changed = True
            yield from (f"### {each}", "")
            yield from two(tuple(aligned(before, text)), ("without", f"with {name}"))
    yield from ("" if changed else "No other action's text.", "")


def _own_properties(name: str) -> Lines:
    without = {each.name for policy in PRESETS.values() for each in statements(policy, PLAIN)}
    own: dict[str, Property] = {}
    for policy in PRESETS.values():
        for each in statements(policy, WORLDS[name]):
            if each.name not in without:
                own.setdefault(each.name, each)
    if own:
        yield from ("## Properties that exist only so", "")
        yield from table(("property", "sentence"), ((f"`{each.name}`", each.sentence) for each in own.values()))


def _properties() -> Lines:
    yield from ("# Properties", "", "As formulas of `strict`, or of the first preset that has them.", "")
    told: set[str] = set()
    for policy in PRESETS.values():
        for size in (PLAIN, *WORLDS.values()):
            for each in statements(policy, size):
                if each.name not in told and each.kind != "sometimes":
                    told.add(each.name)
                    yield from _property(policy, size, each)


def _property(policy: Policy, size: Bounds, each: Property) -> Lines:
    model = model_of(policy, opened(size))
    yield from (f"## {each.name}", "", each.sentence, "")
    where = f"`{policy.name}`{'' if size is PLAIN else f' with {size.name}'}"
    if each.by_construction:
        yield from (f"In {where} it holds by construction.", "")
        return
    if each.closing:
        steps = ", ".join(f"`{label}`" for label, _ in each.closing[:6])
        more = len(each.closing) - 6
        yield from (
            f"In {where} it speaks of {steps}{f' and {more} more' if more > 0 else ''}: none breaks it, where",
            "",
        )
        first = each.closing[0]
        yield from (f"`{first[0]}` would break it if", "")
        yield from _formula(model, first[1])
    if not each.closing or each.here.op != "true":
        yield from (f"In {where}, in every state:", "")
        yield from _formula(model, each.here)


def _formula(model: Model, term: Bool) -> Lines:
    named = [(term, name) for name, term in named_terms(model.state).items() if term is not TRUE]
    yield from ("```text", *guard_lines(reader_of(model, named), term), "```", "")
