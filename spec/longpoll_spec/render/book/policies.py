"""The pages of the book about policies: the knobs of every preset, and any two presets side by side."""

from __future__ import annotations

from itertools import combinations

from longpoll_spec.policy import PRESET_SENTENCES, PRESETS, Policy, knob_sentences, knob_values
from longpoll_spec.render.book.differences import Difference, difference
from longpoll_spec.render.book.markdown import Lines, table, toctree, two


def pages() -> dict[str, Lines]:
    """Path in the book -> lines."""
    pairs = combinations(PRESETS.values(), 2)
    made = {f"differences/{_pair(*pair)}.md": _sides(difference(*pair)) for pair in pairs}
    return made | {"policies.md": _policies(), "differences/index.md": _differences()}


def _policies() -> Lines:
    yield from ("# Policies", "", "A policy is a value for each knob; a preset is a policy with a name.", "")
    yield from table(("preset", "what it is"), ((f"`{name}`", text) for name, text in PRESET_SENTENCES.items()))
    values, said = knob_values(), knob_sentences()
    rows = ([f"`{knob}`", *(str(getattr(each, knob)).lower() for each in PRESETS.values())] for knob in values)
    yield from table(("knob", *PRESETS), rows)
    yield from table(
        ("knob", "values", "what it says"),
        ((f"`{knob}`", ", ".join(str(each).lower() for each in values[knob]), said[knob]) for knob in values),
    )


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
