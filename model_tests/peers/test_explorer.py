"""The explorer's interpreter agrees with our engines for every preset, and with our tokens."""

from __future__ import annotations

import base64
import json
import operator
import random
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import starmap
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs
import msgspec
import pytest
from _pytest.mark import ParameterSet
from model_tests.peers.explorer_node import asked_of_node
from model_tests.support.spec.cases import model_named, quick_if

from longpoll_spec.actions import actions_of
from longpoll_spec.bounds import named
from longpoll_spec.engines import explore
from longpoll_spec.engines.manifest import Entry, pinned
from longpoll_spec.engines.python import successors
from longpoll_spec.engines.tokens import parse, replay, token_of
from longpoll_spec.errors import TokenError
from longpoll_spec.model import Action, Model
from longpoll_spec.mutants.explorer import law_data
from longpoll_spec.mutants.generated import conjuncts, mutants_of
from longpoll_spec.mutants.named import named_mutants
from longpoll_spec.policy import PRESETS, policy_named, preset
from longpoll_spec.render.export.explorer.page import data_of
from longpoll_spec.specification import assemble, properties_of, specification_of
from longpoll_spec.state import State
from longpoll_spec.terms import Bool, Int, all_of, const

pytestmark = [
    pytest.mark.peers,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("node") is None, reason="no node on PATH: the explorer's interpreter is not tried"),
]
Changed: TypeAlias = Callable[[State, Action], Action]
LOST: Final = "lp1.lqxyb2NrZXRtcS00LjmQlAIBAQKsbG9zdF9ieV9ob2xkzhApc3qWAAIEAQgGiskZ0w"
ENTRIES: Final = [entry for entry in pinned() if entry.bounds in {"tiny", "small"}]
SLIPS: Final = 12
"""The number of mutants that our own engine explores too, to compare it with the interpreter."""
SLIP_STATES: Final = 20_000
"""The two searches end at the next level after this number of states, because a mutant may have infinitely many."""


def _data(policy: str, bounds: str) -> str:
    model = model_named(policy, bounds)
    return data_of([(model, token_of(model, ()))])


def _case(entry: Entry) -> ParameterSet:
    slow = [pytest.mark.long, pytest.mark.timeout(1800)] if entry.bounds == "small" else []
    return pytest.param(entry, marks=slow, id=f"{entry.policy}-{entry.bounds}")


@pytest.mark.parametrize("entry", list(map(_case, ENTRIES)))
def test_counts_and_verdicts_are_the_pinned_ones(entry: Entry, tmp_path: Path) -> None:
    (found,) = asked_of_node(tmp_path, _data(entry.policy, entry.bounds), [{"law": 0}])

    assert (found["states"], found["transitions"], found["depth"]) == (
        entry.distinct_states,
        entry.transitions,
        entry.depth,
    )
    assert found["whole"]
    assert found["runs"] == {**entry.violated, **entry.reached}


def test_python_and_the_page_decode_each_others_tokens(tmp_path: Path) -> None:
    data = _data("rocketmq-4.9", "tiny")
    followed, explored = asked_of_node(tmp_path, data, [{"token": LOST}, {"law": 0}])

    assert followed["again"] == LOST
    assert followed["property"] == "lost_by_hold"
    assert tuple(followed["last"]) == replay(LOST).steps[-1].state
    for name, token in explored["tokens"].items():
        trace = replay(token)
        assert (trace.property_name, trace.depth) == (name, explored["runs"][name])
        assert token_of(trace.model, [step.action for step in trace.steps if step.action], name) == token


def test_tokens_of_knobs_and_features_are_the_same(tmp_path: Path) -> None:
    policy = policy_named("strict+tick=free+recheck_after_hold=none")
    model = specification_of(policy, named("tiny", policy, queues=2, aspects=["crash"]))
    token = token_of(model, ())
    (found,) = asked_of_node(tmp_path, data_of([(model, token)]), [{"token": token}])

    assert found["again"] == token
    assert tuple(found["last"]) == model.initial


WALKS: Final = 50
WALK_STEPS: Final = 30


def _walks(model: Model) -> Iterator[list[Action]]:
    after = successors(model)
    for seed in range(WALKS):
        chance, run, state = random.Random(seed), list[Action](), model.initial
        for _ in range(chance.randint(1, WALK_STEPS)):
            choices = after(state)
            if not choices:
                break
            number, state = chance.choice(choices)
            run.append(model.actions[number])
        yield run


def _unlike(directory: Path, name: str, script: str = "") -> list[str]:
    """Return the tokens of random runs, some made by Python and some by the page, that the two decode differently."""
    model = model_named(name, "tiny")
    ours = [token_of(model, run) for run in _walks(model)]
    asked: list[dict[str, Any]] = [{"token": token} for token in ours]
    asked += [{"law": 0, "walk": seed, "steps": 1 + seed % WALK_STEPS} for seed in range(WALKS)]
    found = asked_of_node(directory, _data(name, "tiny"), asked, script)
    wrong = [
        token
        for token, told in zip(ours, found, strict=False)
        if (told.get("again"), told.get("last")) != (token, list(replay(token).steps[-1].state))
    ]
    theirs = [(told["token"], told["run"], told["last"]) for told in found[WALKS:]]
    wrong += [token for token, run, _ in theirs if list(parse(token).actions) != run]
    return wrong + [token for token, _, last in theirs if not _ends_at(token, last)]


def _ends_at(token: str, state: list[int]) -> bool:
    try:
        return list(replay(token).steps[-1].state) == state
    except TokenError:
        return False


@pytest.mark.parametrize("name", quick_if(PRESETS, lambda name: name in {"strict", "rocketmq-4.9"}))
def test_random_runs_have_the_same_token(name: str, tmp_path: Path) -> None:
    assert _unlike(tmp_path, name) == []


def spelled(fields: object) -> str:
    raw = fields if isinstance(fields, bytes) else msgspec.msgpack.encode(fields)
    return "lp1." + base64.urlsafe_b64encode(raw + zlib.crc32(raw).to_bytes(4, "big")).decode().rstrip("=")


def _fields(token: str) -> list[Any]:
    text = token.removeprefix("lp1.")
    fields: list[Any] = msgspec.msgpack.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))[:-4])
    return fields


FIELDS: Final = _fields(LOST)
HOSTILE: Final = {
    "a number": (spelled(7), "from another version"),
    "nothing": (spelled([]), "from another version"),
    "lists in lists": (spelled(b"\x91" * 2_900 + b"\x01"), "from another version"),
    "a text for the run": (spelled([*FIELDS[:5], "abc"]), "from another version"),
    "a list of texts for the run": (spelled([*FIELDS[:5], ["a"]]), "from another version"),
    "nulls": (spelled([None] * 6), "from another version"),
    "a field too many": (spelled([*FIELDS, 1, 1, [], 3]), "from another version"),
    "a number for the knobs": (spelled([FIELDS[0], 3, *FIELDS[2:]]), "from another version"),
    "a step that is none": (spelled([*FIELDS[:5], [10**9]]), "cannot happen here"),
    "a step before the first": (spelled([*FIELDS[:5], [-1]]), "cannot happen here"),
    "a run that ends early": (spelled([*FIELDS[:5], [0] * 3_000]), "cannot happen here"),
    "another fingerprint": (spelled([*FIELDS[:4], 1, *FIELDS[5:]]), "from another version of the specification"),
    "a policy that is none": (spelled(["<img src=x>", *FIELDS[1:]]), "does not have the specification of <img src=x>"),
    "a megabyte": ("lp1." + "A" * 1_000_000, "at most 4096 are allowed"),
    "another format": (LOST.replace("lp1", "lp2"), "not a token of this version"),
    "cut off": (LOST[:-1], "damaged"),
    "one character changed": (f"{LOST[:20]}A{LOST[21:]}", "damaged"),
    "markup": ("lp1.<b>", "damaged"),
}
"""Name of the damage -> the parts of the token, and the error that it causes."""


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_token_gets_an_error_of_one_sentence(what: str, tmp_path: Path) -> None:
    token, told = HOSTILE[what]
    (found,) = asked_of_node(tmp_path, _data("rocketmq-4.9", "tiny"), [{"token": token}])

    assert told in found["error"]
    with pytest.raises(TokenError):
        replay(token)


def test_two_changed_knobs_give_the_specification_with_both(tmp_path: Path) -> None:
    data = _of_policy("rocketmq-4.9")
    names = [law["policy"] for law in json.loads(data)["laws"]]
    two = [name for name in names if name.count("+") == 2]
    chosen = two[:: len(two) // 4]
    found = asked_of_node(tmp_path, data, [{"law": names.index(name), "limit": BY_HAND_STATES} for name in chosen])

    assert len(two) > 90
    for name, seen in zip(chosen, found, strict=True):
        model = model_named(name, "tiny")
        ours = explore(model, properties_of(model), engine="python", limit_states=BY_HAND_STATES)
        assert (seen["states"], seen["transitions"], seen["runs"]) == (
            ours.distinct_states,
            ours.transitions,
            _runs(ours),
        ), name
    assert "rocketmq-4.9+recheck_after_hold=after_insert+recheck=walk" in two
    assert [name for name in two if "heap_entry" in name and "expiry" not in name] == []


def test_mutants_violate_the_same_properties(tmp_path: Path) -> None:
    policy = preset("rocketmq-4.9")
    data = _of_policy(policy.name)
    told = [slip["what"] for slip in json.loads(data)["slips"]]
    every = len(told) // SLIPS
    chosen = list(range(0, len(told), every))
    answers = asked_of_node(tmp_path, data, [{"law": 0, "slip": at, "limit": SLIP_STATES} for at in chosen])
    bounds = named("tiny", policy)
    planted = [
        each for each in (*named_mutants(policy, bounds), *mutants_of(policy, bounds)) if each.is_in(policy, bounds)
    ]

    assert len(planted) == len(told)
    caught = 0
    for at, found in zip(chosen, answers, strict=True):
        model = planted[at].planted(policy, bounds)
        ours = explore(model, properties_of(model), engine="python", limit_states=SLIP_STATES)
        assert found["whole"] == ours.complete
        assert (found["states"], found["transitions"]) == (ours.distinct_states, ours.transitions), told[at]
        assert found["runs"] == _runs(ours), told[at]
        caught += any(each.verdict == "violated" for each in ours.verdicts)
    assert caught


BY_HAND_STATES: Final = 3_000


@cache
def _of_policy(name: str) -> str:
    return law_data(preset(name), partial(named, "tiny"))


def _both_ways(
    names: Sequence[Sequence[str]], changed: Sequence[Changed], tmp_path: Path, limit: int, script: str = ""
) -> tuple[list[Any], list[Any]]:
    """Return the interpreter's results and our engine's results for the same changes by hand."""
    policy = preset("rocketmq-4.9")
    model = specification_of(policy, named("tiny", policy))
    ask = [{"law": 0, "slip": list(each), "limit": limit} for each in names]
    here = asked_of_node(tmp_path, _of_policy("rocketmq-4.9"), ask, script)
    there = []
    for make in changed:
        other = assemble(model.state, [make(model.state, action) for action in actions_of(model.state)])
        ours = explore(other, properties_of(other), engine="python", limit_states=limit)
        there.append((ours.distinct_states, ours.transitions, _runs(ours)))
    return [(each.get("states"), each.get("transitions"), each.get("runs", each)) for each in here], there


def test_changes_by_hand_give_the_same_results(tmp_path: Path) -> None:
    def effect(action: Action, name: str, make: Callable[[Any], Int]) -> Action:
        made = {key: make(term) if key.startswith(name) else term for key, term in action.effect.items()}
        return attrs.evolve(action, effect=made)

    def guard(action: Action, at: int, make: Callable[[Bool], Bool]) -> Action:
        parts = [make(part) if number == at else part for number, part in enumerate(conjuncts(action))]
        return attrs.evolve(action, guard=all_of(parts))

    changes: dict[str, tuple[str, Callable[[State, Action], Action]]] = {
        "notify_each turns round what its guard says of phase": (
            "notify_each",
            lambda _, a: guard(a, 1, operator.inv),
        ),
        "append moves the border in what its guard says of log_end": (
            "append",
            lambda state, a: guard(a, 1, lambda _: state.queues[0].log_end <= 1),
        ),
        "hold writes queued to phase": (
            "hold",
            lambda state, a: effect(a, "phase", lambda _: const(state.phases["queued"])),
        ),
        "next_pull writes one less to deadline": ("next_pull", lambda _, a: effect(a, "deadline", lambda old: old - 1)),
        "make_visible writes one more to visible_end": (
            "make_visible",
            lambda _, a: effect(a, "visible_end", lambda old: old + 1),
        ),
        "run writes 0 to copies": ("run", lambda _, a: effect(a, "copies", lambda _: const(0))),
    }

    def only(name: str, make: Changed) -> Changed:
        return lambda state, action: make(state, action) if action.name == name else action

    here, there = _both_ways(
        [[name] for name in changes], list(starmap(only, changes.values())), tmp_path, BY_HAND_STATES
    )
    assert here == there


@pytest.mark.long
@pytest.mark.parametrize("name", ["rocketmq-4.9", "strict"])
def test_a_mutant_equals_the_same_change_by_hand(name: str, tmp_path: Path) -> None:
    data = _of_policy(name)
    (told,) = asked_of_node(tmp_path, data, [{"places": True}])
    changes = {change["name"] for place in told["places"] for change in place["changes"]}
    slips = {f"{slip['action']} {slip['what']}": at for at, slip in enumerate(json.loads(data)["slips"])}
    both = [each for each in slips if each in changes]
    asked = [{"law": 0, "slip": slip, "limit": SLIP_STATES} for each in both for slip in (slips[each], [each])]
    found = asked_of_node(tmp_path, data, asked)

    assert len(both) > 90
    assert found[::2] == found[1::2]
    assert len(changes) == sum(len(place["changes"]) for place in told["places"])


def _runs(found: Any) -> dict[str, int]:
    return {each.name: each.depth for each in found.verdicts if each.depth is not None}
