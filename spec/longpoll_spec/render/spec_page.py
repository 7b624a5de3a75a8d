"""Generates docs/spec.md from the specification: its state, moves, actions, policies and properties.

`python -m longpoll_spec.render.spec_page > docs/spec.md` writes the page, and a test compares the file with it. An
action is shown with its sentence, its location in Java, its guard and its effect. Policies with the same guard and
effect share a paragraph. The findings are in docs/findings.md.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from difflib import ndiff
from functools import cache
from itertools import pairwise, product
from typing import Final

import attrs

from longpoll_spec.actions import actions_of
from longpoll_spec.bounds import EXPLORATIONS, NAMES, Bounds, named
from longpoll_spec.model import ACTION_NAMES, Action, Actor, Kind, Model, Property
from longpoll_spec.policy import PRESET_SENTENCES, PRESETS, STRICT, STRICT_CLONE, Policy, knob_sentences, knob_values
from longpoll_spec.render.conditions import PLAIN, changes_of, condition_of, samples
from longpoll_spec.render.export.tla import formulas_of
from longpoll_spec.render.java_breakpoints import stopped_at
from longpoll_spec.render.notation import bare, effect_lines, guard_lines, reader_of, stem
from longpoll_spec.render.phase_changes import PhaseChange, phase_changes_of
from longpoll_spec.render.rocketmq_names import place_of
from longpoll_spec.specification import properties_of, specification_of
from longpoll_spec.state import State, Variable, state_of
from longpoll_spec.terms import TRUE, Term

OPEN: Final = Bounds("open", requests=2, messages=None)
"""The bounds of the page's text: two requests and an unbounded log."""
Told = tuple[str, ...]
"""An action under one policy: its sentence, then its lines."""


@cache
def model_of(policy: Policy, bounds: Bounds = OPEN) -> Model:
    """The model whose text the page shows. The guard of `tick` lacks the condition that no urgent action is enabled."""
    state = state_of(policy, bounds)
    return Model(policy, bounds, state, tuple(actions_of(state)))


def named_terms(state: State) -> dict[str, Term]:
    """Map names to frequent terms. A name ends with the number of the request or queue that the term is about."""
    several = len(state.queues) > 1
    of_queues = {f"_{queue.name}" if several else "": queue for queue in state.queues}
    return {
        **{f"lock free{end}": state.lock_free(queue) for end, queue in of_queues.items()},
        **{f"bucket looks empty{end}": state.bucket_looks_empty(queue) for end, queue in of_queues.items()},
        **({f"lock free_{each.index}": state.lock_free_of(each) for each in state.requests} if several else {}),
        **{f"more_{each.index}": state.has_more(each) for each in state.requests},
    }


def actions_text() -> Iterator[str]:
    """Every action that some preset has, in the order of the spec."""
    for name in ACTION_NAMES:
        yield from _action(name)


def _in_presets(name: str) -> str:
    waited = {
        policy.name: any(
            each.urgent for bounds in (OPEN, *EXPLORATIONS.values()) for each in _instances(policy, bounds, name)
        )
        for policy in PRESETS.values()
    }
    those = [policy for policy, urgent in waited.items() if urgent]
    return f" (in {_list(those)})" if those else ""


Groups = dict[tuple[Told, ...], list[str]]
"""The texts of an action, each with the policies that have it."""


def _groups(name: str, bounds: Bounds) -> Groups:
    groups: Groups = {}
    for policy in PRESETS.values():
        model = model_of(policy, bounds)
        texts = tuple(action_told(model, action) for action in kinds_of_action(model, name))
        if texts:
            groups.setdefault(texts, []).append(policy.name)
    return groups


def _action(name: str) -> Iterator[str]:
    plain = _groups(name, OPEN)
    with_aspect = {aspect: opened(bounds) for aspect, bounds in EXPLORATIONS.items()}
    alone = {
        aspect: groups for aspect, bounds in with_aspect.items() if not plain and (groups := _groups(name, bounds))
    }
    everywhere = [plain, *alone.values()]
    yield f"### {name}"
    yield ""
    for sentence in dict.fromkeys(lines[0] for groups in everywhere for told in groups for lines in told):
        yield sentence
        yield ""
    yield f"- in RocketMQ: {places_text(name)}"
    yield from (f"- a thread of {each}" for each in stopped_at(name))
    exists = condition_of(lambda policy, bounds: bool(_instances(policy, bounds, name)))
    urgent = condition_of(lambda policy, bounds: any(each.urgent for each in _instances(policy, bounds, name)))
    yield f"- exists: {exists.text}"
    yield f"- time waits for it: {'always' if urgent == exists else urgent.text + _in_presets(name)}"
    for told, policies in plain.items():
        yield from _block(f"In {_list(policies)}:" if len(plain) > 1 else "In every preset that has it:", told)
    for aspect, groups in alone.items():
        for told, policies in groups.items():
            yield from _block(f"The action needs the feature `{aspect}`. In {_list(policies)}:", told)
    for aspect, bounds in with_aspect.items():
        if plain:
            yield from _difference(name, aspect, bounds)
    yield ""


def opened(bounds: Bounds) -> Bounds:
    """The bounds with two requests and any number of messages."""
    return attrs.evolve(bounds, requests=OPEN.requests, messages=OPEN.messages)


def places_text(name: str) -> str:
    """The places of an action in RocketMQ's source, under all policies and bounds together."""
    every = [model_of(*sample).named(name) for sample in samples()]
    places = dict.fromkeys(place_of(action) for actions in every for action in actions)
    return "; ".join(filter(None, places)) or "no thread: time passes"


def _block(words: str, told: tuple[Told, ...]) -> Iterator[str]:
    yield from ("", words, "", "```text")
    for number, lines in enumerate(told):
        yield from ([""] if number else [])
        yield from lines[1:]
    yield "```"


def _difference(name: str, aspect: str, bounds: Bounds) -> Iterator[str]:
    before, after = (action_lines(name, STRICT, each) for each in (OPEN, bounds))
    changed = [f"{line[0]}{line[2:]}" for line in ndiff(before, after) if line[0] in "+-"]
    if changed:
        yield from (
            "",
            f"The feature `{aspect}` changes this action of `{STRICT.name}`:",
            "",
            "```diff",
            *changed,
            "```",
        )


@cache
def action_lines(name: str, policy: Policy, bounds: Bounds) -> tuple[str, ...]:
    """The lines of all kinds of an action under one policy; empty if the policy lacks the action."""
    model = model_of(policy, bounds)
    return tuple(line for action in kinds_of_action(model, name) for line in action_told(model, action)[1:])


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def kinds_of_action(model: Model, name: str) -> list[Action]:
    """One instance of each kind of an action: the first request, queue and tag, and each notifier."""
    return [action for action in model.named(name) if not any(_is_another(actor) for actor in action.actors)]


def _is_another(actor: Actor) -> bool:
    return bool(re.fullmatch(r"[qt]?[1-9]\d*", str(actor)))


def action_told(model: Model, action: Action) -> Told:
    """The text of an action: its sentence, its head, and a line for each part of its guard and effect."""
    reader = reader_of(model, [(term, name) for name, term in named_terms(model.state).items() if term is not TRUE])
    variables = {variable.name: variable for variable in model.variables}
    actors = ", ".join("r" if isinstance(actor, int) else actor for actor in action.actors)
    guard = guard_lines(reader, action.guard)
    if action.name == "tick" and model.policy.tick == "maximal_progress":
        guard = ["no action that time waits for can happen"]
    effect = effect_lines(reader, action, variables) or ["nothing changes"]
    head = f"{action.name}({actors})" if actors else action.name
    return (
        action.sentence,
        head,
        *(f"  {'when' if not number else 'and '} {line}" for number, line in enumerate(guard)),
        *(f"  {'then' if not number else '    '} {line}" for number, line in enumerate(effect)),
    )


def _instances(policy: Policy, bounds: Bounds, name: str) -> tuple[Action, ...]:
    return model_of(policy, bounds).named(name)


HEAD: Final = """# The specification, in full

This page is generated from the specification by `python -m longpoll_spec.render.spec_page`; a test compares it.
Introduction and use: [the model](model.md). Results: [findings](findings.md).
"""
KINDS: Final[dict[Kind, str]] = {
    "always": "Always: true in every reachable state. A run that breaks a property about a step ends with that step.",
    "inductive": "Always, but needed only by proofs.",
    "sometimes": "Sometimes: reached in some run, so that no property holds vacuously.",
}

OTHER: Final = "_1"
"""The suffix of the names of terms about the second request."""


def page() -> str:
    """The whole page, as Markdown."""
    parts = (_head(), _state(), _bounds(), _moves(), _actions(), policies("## Policies"), _properties(), _formulas())
    return "\n".join(line for part in parts for line in (*part, "")).rstrip("\n") + "\n"


def _head() -> Iterator[str]:
    yield HEAD.rstrip("\n")


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    heads = list(columns)
    yield f"| {' | '.join(heads)} |"
    yield f"| {' | '.join('---' for _ in heads)} |"
    for row in rows:
        cells = [re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in row]
        yield f"| {' | '.join(cells)} |"


def _state() -> Iterator[str]:
    yield "## State"
    yield ""
    yield "A state is a value for each variable. `[r]` marks one for each request. Each starts at its first value."
    yield ""
    yield from _table(("variable", "what it is", "values", "first", "exists"), map(_variable, _variables().values()))


def _variable(variable: Variable) -> tuple[str, ...]:
    name = _shown(variable.name)
    found = condition_of(lambda policy, bounds: name in _names(policy, bounds))
    return f"`{name}`", variable.sentence, _values(variable), " or ".join(_firsts()[name]), found.text


@cache
def _firsts() -> dict[str, dict[str, None]]:
    """Map a variable's shown name to its first values in words, in the samples of policies and bounds."""
    found: dict[str, dict[str, None]] = {}
    for policy, bounds in samples():
        for each in state_of(policy, bounds).variables:
            first = str(each.first.args[0]) if each.first.op == "parameter" else each.show(each.initial)
            found.setdefault(_shown(each.name), {})[first] = None
    return found


def _values(variable: Variable) -> str:
    if variable.truth:
        return "yes, no"
    if variable.labels:
        return ", ".join(variable.labels)
    upper = variable.limit.args[0] if variable.limit is not None else variable.upper
    return f"{variable.lower} to {'any' if upper is None else upper}"


def _shown(name: str) -> str:
    return f"{stem(name)}[r]" if stem(name) != name else re.sub(r"_q\d+$", "", name)


@cache
def _variables() -> dict[str, Variable]:
    """Map shown names to variables: the variables of all samples, each with all its value names."""
    found: dict[str, Variable] = {}
    for policy, bounds in samples():
        for variable in state_of(policy, bounds).variables:
            known = found.setdefault(_shown(variable.name), variable)
            if not set(variable.labels) <= set(known.labels):
                found[_shown(variable.name)] = attrs.evolve(known, labels=_merged(known.labels, variable.labels))
    return found


def _merged(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    """The words of both lists. A word that only the second list has comes after the word before it in that list."""
    words = list(first)
    for before, word in pairwise(second):
        if word not in words:
            words.insert(words.index(before) + 1, word)
    return tuple(words)


@cache
def _names(policy: Policy, bounds: Bounds) -> frozenset[str]:
    return frozenset(_shown(variable.name) for variable in state_of(policy, bounds).variables)


def _bounds() -> Iterator[str]:
    yield "## Bounds"
    yield ""
    yield (
        "Bounds limit the model's size. A variable that counts ticks starts at, or is set to, the bound of its name. "
        "A guard disables an action at a bound: `append` needs `log_end < messages`, and an action that adds one to "
        "`copies[r]` needs `copies[r] < 2`. Where there are two numbers of requests, the second is for a policy whose "
        "`take` is `in_place`."
    )
    yield ""
    yield (
        "Two states are equal if every variable has the same value. Each enabled action, with each choice of request, "
        "notifier, queue and tag, is one transition, even if it changes nothing or leads to the same state as another. "
        "The depth is the distance of the farthest state from the first one, in steps."
    )
    yield ""
    columns = ("bounds", "requests", "messages in a queue", "`hold_ticks`", "`scan_ticks`", "queues", "tags", "aspects")
    yield from _table(columns, map(_sizes, NAMES))


def _sizes(name: str) -> tuple[str, ...]:
    clone, place = (named(name, policy) for policy in (STRICT_CLONE, STRICT))
    requests = " or ".join(map(str, dict.fromkeys((clone.requests, place.requests))))
    numbers = (clone.messages, clone.hold_ticks, clone.scan_ticks, clone.queues, clone.tags)
    aspects = ", ".join(f"`{each}`" for each in sorted(clone.aspects))
    return f"`{name}`", requests, *map(str, numbers), aspects or "none"


def _moves() -> Iterator[str]:
    yield "## The phases of a request"
    yield ""
    yield "The actions that move a request from one phase to another, derived from their effects."
    diagrams: dict[tuple[PhaseChange, ...], list[str]] = {}
    for name, policy in PRESETS.items():
        diagrams.setdefault(phase_changes_of(model_of(policy)), []).append(name)
    for moves, names in diagrams.items():
        yield ""
        yield f"In {', '.join(f'`{name}`' for name in names)}:"
        yield ""
        yield "```mermaid"
        yield from diagram(moves)
        yield "```"


def diagram(moves: Iterable[PhaseChange]) -> Iterator[str]:
    """The lines of a mermaid state diagram. An arrow is labelled with all actions that move a request along it."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for move in moves:
        arrows.setdefault((move.before, move.after), []).append(move.action)
    yield "stateDiagram-v2"
    yield "    [*] --> idle"
    for (before, after), actions in arrows.items():
        yield f"    {before} --> {after}: {', '.join(dict.fromkeys(actions))}"


def _actions() -> Iterator[str]:
    yield "## Actions"
    yield ""
    yield (
        "An action is enabled when its guard holds; its effect happens atomically, and right-hand sides use the "
        "values before it. `r` is the acting request, `other` another one, `s` any request including `r`; `q0` and "
        "`q1` are queues, `t0` and `t1` tags. Variables that are not assigned keep their values. "
        "Limits of bounds (the number of messages) are left out. Frequent conditions have names:"
    )
    yield ""
    yield from _table(("name", "in", "means"), _meanings())
    yield ""
    yield from actions_text()


def _meanings() -> Iterator[tuple[str, str, str]]:
    models = [model_of(policy) for policy in PRESETS.values()]
    for name in [name for name in named_terms(models[0].state) if not name.endswith(OTHER)]:
        told: dict[str, list[str]] = {}
        for model in models:
            term = named_terms(model.state)[name]
            text = "always" if term is TRUE else bare(reader_of(model).text(term))
            told.setdefault(text, []).append(model.policy.name)
        for text, names in told.items():
            where = "every preset" if len(told) == 1 else ", ".join(names)
            yield reader_of(models[0]).name(name), where, f"`{text}`"


def policies(head: str) -> Iterator[str]:
    """The section about presets and knobs, with this heading."""
    yield head
    yield ""
    yield "A policy is a value for each knob; a preset is a policy with a name."
    yield ""
    values, sentences = knob_values(), knob_sentences()
    yield from _table(("preset", "what it is"), ((f"`{name}`", text) for name, text in PRESET_SENTENCES.items()))
    yield ""
    yield from _table(
        ("knob", *PRESETS),
        ((f"`{knob}`", *(str(getattr(policy, knob)).lower() for policy in PRESETS.values())) for knob in values),
    )
    yield ""
    rows = ((f"`{knob}`", ", ".join(str(value).lower() for value in values[knob]), sentences[knob]) for knob in values)
    yield from _table(("knob", "values", "what it says"), rows)


def _properties() -> Iterator[str]:
    yield "## Properties"
    yield ""
    for kind, words in KINDS.items():
        yield words
        yield ""
        those = [item for item in _stated().values() if item.kind == kind]
        rows = ((f"`{item.name}`", item.sentence, _when_stated(item.name)) for item in those)
        yield from _table(("property", "sentence", "stated"), rows)
        yield ""
    yield from _by_construction()


def _by_construction() -> Iterator[str]:
    yield (
        "By construction: some properties hold vacuously in a policy, for example because it lacks the action that "
        "could break them. Exploring or proving them shows nothing. In all bounds that have them, these are:"
    )
    yield ""
    rows = ((f"`{policy.name}`", ", ".join(f"`{each}`" for each in _folded(policy))) for policy in PRESETS.values())
    yield from _table(("preset", "properties"), rows)


def _folded(policy: Policy) -> list[str]:
    stated: dict[str, bool] = {}
    for size in (PLAIN, *EXPLORATIONS.values()):
        for item in _properties_under(policy, size).values():
            stated[item.name] = stated.get(item.name, True) and item.by_construction
    return [name for name, folded in stated.items() if folded]


FORMULAS: Final = r"""The formulas are those of the TLA+ module that `longpoll export --to tla` writes.
`r` and `s` are requests, `q` and `p` queues. In one queue read `queue[r] \in Queues` as true, and
`visible_end[queue[r]]` and `visible_end[q]` as `visible_end`. `Lost(r)'` and `phase'[r]` are the values after the step.
`[][A]_vars` says that each step satisfies A; `hold(r)` in it says that the step is that action.
`MayTick` is the guard of `tick`, and `ENABLED expire(r)` that of `expire`.

A run that breaks a property of a state ends in that state. A run that breaks a property of a step, or a property whose
formula begins with `MayTick`, ends with the step that breaks the property, and its length includes this step.
`time_can_pass` has no formula here: it says that no reachable state disables both `tick` and all urgent actions, and
that urgent actions alone cannot continue for ever.
With a feature the formulas are those of `strict`, where they differ."""


def _formulas() -> Iterator[str]:
    yield "## Formulas"
    yield ""
    yield FORMULAS
    plain: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for policy in PRESETS.values():
        for name, text in formulas_of(model_of(policy)).items():
            plain.setdefault(name, {}).setdefault(text, []).append(policy.name)
    blocks: dict[str, list[tuple[str, ...]]] = {}
    for texts in plain.values():
        for text, names in texts.items():
            where = "every preset that has it" if len(texts) == 1 else ", ".join(f"`{name}`" for name in names)
            blocks.setdefault(f"In {where}:", []).append(text)
    told = {text for texts in plain.values() for text in texts}
    for aspect, bounds in EXPLORATIONS.items():
        new = [text for text in formulas_of(model_of(STRICT, opened(bounds))).values() if text not in told]
        if new:
            blocks[f"With the feature `{aspect}`, `{STRICT.name}` has these formulas:"] = new
    left = {item.name for item in _stated().values() if item.kind == "always"} - {"time_can_pass"}
    left -= {text[0].split()[0] for those in blocks.values() for text in those}
    for policy, (aspect, bounds) in product(PRESETS.values(), EXPLORATIONS.items()):
        found = formulas_of(model_of(policy, opened(bounds))) if left else {}
        new = [found[name] for name in sorted(left & found.keys())]
        if new:
            left -= found.keys()
            blocks[f"With the feature `{aspect}`, `{policy.name}` has these formulas:"] = new
    for where, those in blocks.items():
        yield from ("", where, "", "```text", *[line for text in those for line in text][:-1], "```")


@cache
def _stated() -> dict[str, Property]:
    return {name: item for sample in _stating() for name, item in _properties_under(*sample).items()}


@cache
def _stating() -> tuple[tuple[Policy, Bounds], ...]:
    """The samples for which properties are stated: fewer than for states, because stating properties takes longer.

    With a feature, the samples are the presets, and `strict` with each knob changed.
    """
    asked = {*PRESETS, *(policy.name for policy in changes_of(PRESETS["strict"]))}
    return tuple(sample for sample in samples() if sample[1] is PLAIN or sample[0].name in asked)


@cache
def _properties_under(policy: Policy, bounds: Bounds) -> dict[str, Property]:
    """Map names to the properties of a policy under bounds. The log is unbounded, because its size does not matter."""
    return {item.name: item for item in properties_of(specification_of(policy, opened(bounds)))}


def _when_stated(name: str) -> str:
    return condition_of(lambda policy, bounds: name in _properties_under(policy, bounds), _stating()).text


def main() -> None:
    """Write the page to standard output."""
    sys.stdout.write(page())


if __name__ == "__main__":
    main()
