"""The pages about findings and the specification match the specification."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from _pytest.mark import ParameterSet
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from model_tests.support.spec.cases import breaks_its_property, quick_if

from longpoll.cli import main
from longpoll_spec.actions import actions_of
from longpoll_spec.bounds import EXPLORATIONS, Bounds, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.manifest import pinned
from longpoll_spec.engines.tokens import replay
from longpoll_spec.model import ACTION_NAMES, Model, Trace, select
from longpoll_spec.policy import PRESETS, REDUNDANT, Policy, knob_values, preset
from longpoll_spec.render import spec_page
from longpoll_spec.render.conditions import PLAIN, Condition, condition_of, features_of
from longpoll_spec.render.notation import bare, reader_of
from longpoll_spec.render.phase_changes import phase_changes_of
from longpoll_spec.render.spec_page import OPEN, model_of
from longpoll_spec.specification import properties_of, specification_of
from longpoll_spec.state import state_of
from longpoll_spec.terms import all_of, any_of, int_variable

PAGE = Path(__file__).parents[2] / "docs" / "spec.md"
ARROW = re.compile(r"^    (\w+) --> (\w+): (.+)$", re.MULTILINE)

policies = st.builds(
    Policy, name=st.just("any"), **{name: st.sampled_from(each) for name, each in knob_values().items()}
)
bounds = st.sampled_from((PLAIN, *EXPLORATIONS.values()))


@pytest.mark.long
def test_the_page_is_up_to_date() -> None:
    """`python -m longpoll_spec.render.spec_page > docs/spec.md` updates the page."""
    # The command runs in its own process, because the order of a junction's operands depends on earlier terms.
    told = subprocess.run(
        [sys.executable, "-m", "longpoll_spec.render.spec_page"], capture_output=True, text=True, check=True
    )
    assert PAGE.read_text("utf-8") == told.stdout


def test_the_page_leaves_no_action_and_no_knob_out() -> None:
    page = PAGE.read_text("utf-8")
    for name in ACTION_NAMES:
        assert f"\n### {name}\n" in page
    assert all(f"| `{knob}` |" in page for knob in knob_values())


@pytest.mark.parametrize("name", quick_if(PRESETS, lambda name: name == "rocketmq-lmq"))
def test_the_page_leaves_no_variable_and_no_property_out(name: str) -> None:
    page, policy = PAGE.read_text("utf-8"), preset(name)
    for size in (named("tiny", policy), *EXPLORATIONS.values()):
        model = specification_of(policy, size)
        assert all(f"| `{item.name}` |" in page for item in properties_of(model))
        assert all(f"| `{spec_page._shown(each.name)}`" in page for each in model.variables)


def _rows_of_variables() -> dict[str, tuple[str, str]]:
    """Return variable -> (its values, its initial value), as the page lists them."""
    state = PAGE.read_text("utf-8").split("\n## State\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in state.splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): (cells[2], cells[3]) for cells in rows}


def _wrong_firsts(rows: dict[str, tuple[str, str]]) -> set[str]:
    """Return the variables whose initial value differs from the page's, for some preset and bounds."""
    wrong = set()
    for policy in PRESETS.values():
        for size in (named("tiny", policy), *EXPLORATIONS.values()):
            model = specification_of(policy, size)
            parameters = {"hold_ticks": size.hold_ticks, "scan_ticks": size.scan_ticks}
            for variable, value in zip(model.variables, model.initial, strict=True):
                values, first = rows[re.sub(r"_\d+$", "[r]", re.sub(r"_q\d+$", "", variable.name))]
                word = variable.labels[value] if variable.labels else ("no", "yes")[value] if variable.truth else value
                if str(parameters.get(first, first)) != str(word):
                    wrong.add(variable.name)
                if (variable.labels or variable.truth) and word not in values.split(", "):
                    wrong.add(variable.name)
    return wrong


def test_initial_values_are_those_of_the_models_initial_states() -> None:
    rows = _rows_of_variables()

    assert {"announced", "wants[r]", "next_scan", "running"} <= set(rows)
    assert _wrong_firsts(rows) == set()


@pytest.mark.parametrize("name", PRESETS)
def test_the_diagram_shows_the_phase_changes(name: str) -> None:
    """The arrows of a diagram are exactly the phase changes of the specification."""
    moves = set(phase_changes_of(model_of(preset(name))))
    shown = {
        (action, before, after)
        for before, after, actions in ARROW.findall(
            "\n".join(spec_page.diagram(phase_changes_of(model_of(preset(name)))))
        )
        for action in actions.split(", ")
    }

    assert shown == {(move.action, move.before, move.after) for move in moves}


VARIABLES = ("recheck_due_0", "armed_0", "phase_0")


@given(policies, bounds)
def test_a_variable_exists_when_the_page_says(policy: Policy, size: Bounds) -> None:
    there = {variable.name for variable in state_of(policy, size).variables}

    for name in VARIABLES:
        found = _when_there(name)
        assert found.holds(features_of(policy, size)) == (name in there), found.text


@cache
def _when_there(name: str) -> Condition:
    return condition_of(lambda policy, size: any(each.name == name for each in state_of(policy, size).variables))


def _has(policy: Policy, size: Bounds, name: str, *, urgent: bool = False) -> bool:
    return any(each.urgent or not urgent for each in model_of(policy, size).named(name))


@pytest.mark.parametrize("name", quick_if(ACTION_NAMES, lambda name: name == "expire"))
@settings(max_examples=15)
@given(policies, bounds)
def test_an_action_exists_and_is_urgent_when_the_page_says(name: str, policy: Policy, size: Bounds) -> None:
    features = features_of(policy, size)
    actions = list(actions_of(state_of(policy, size)))

    assert _when(name).holds(features) == any(each.name == name for each in actions)
    urgent = any(each.name == name and each.urgent for each in actions)
    assert _when(name, urgent=True).holds(features) == urgent


@cache
def _when(name: str, *, urgent: bool = False) -> Condition:
    return condition_of(lambda policy, size: _has(policy, size, name, urgent=urgent))


def test_every_condition_is_described_in_words() -> None:
    def one(policy: Policy, _: Bounds) -> bool:
        return policy.expiry == "scan"

    def both(policy: Policy, _: Bounds) -> bool:
        return policy.expiry == "scan" and policy.on_stop == "answer"

    def either(policy: Policy, _: Bounds) -> bool:
        return policy.expiry == "scan" or policy.on_stop == "answer"

    assert condition_of(lambda _, __: True).text == "always"
    assert condition_of(lambda _, __: False).text == "never"
    assert condition_of(one).text == "where `expiry` is `scan`"
    assert condition_of(both).text == "where `expiry` is `scan` and `on_stop` is `answer`"
    assert condition_of(either).text in {
        "where `expiry` is `scan`, or where `on_stop` is `answer`",
        "where `on_stop` is `answer`, or where `expiry` is `scan`",
    }


def _model() -> Model:
    return model_of(preset("strict"), OPEN)


def test_a_statement_about_both_requests_is_printed_once() -> None:
    """A junction over the two requests is printed with "every" or "some", unless it treats the requests differently."""
    model = _model()
    first, second = (int_variable(f"phase_{slot}") for slot in (0, 1))
    reader = reader_of(model)

    assert bare(reader.text(all_of((first.is_(0), second.is_(0))))) == "every s: phase[s] = idle"
    assert bare(reader.text(any_of((first.is_(0), second.is_(0))))) == "some s: phase[s] = idle"
    assert bare(reader.text(all_of((first.is_(0), second.is_(1))))) == "phase[r] = idle and phase[other] = pulling"


DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("model.md", "findings.md")
TOKEN = re.compile(r"lp1\.[\w-]+")
CLAIM = re.compile(r"`(\w+)`,? \(?(\d+) steps")
HAZARDS = {
    "a": ("lost_by_hold",),
    "b": ("lost_by_keep",),
    "c": ("queued_by_deadline",),
    "d": ("dropped_by_reject", "dropped_by_throw"),
    "e": ("closed_is_let_go",),
    "g": ("moved_is_told",),
    "h": ("commit_never_regresses",),
    "i": ("buckets_are_swept",),
    "j": ("no_orphan",),
    "l": ("round_is_whole",),
    "m": ("return_is_whole",),
    "o": ("told_of_role_change",),
    "p": ("answered_on_stop",),
}
"""Letter of a finding -> the properties that the table of findings lists for it."""
COLUMNS = ("rocketmq-4.9", "rocketmq-5", "rocketmq-pr7359", "rocketmq-lmq")


def _commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL):
            found += [(page, line) for line in block.splitlines()]
    return found


def _sections(page: str) -> Iterator[str]:
    yield from (DOCS / page).read_text("utf-8").split("\n## ")[1:]


WORSE = (
    r"check --policy rocketmq-4\.9$",
    r"recheck_after_hold=none",
    r"recheck_after_keep=false",
    r"recheck_after_hold=before_lock",
    r"recheck_after_hold=in_lock",
    r"recheck_after_hold=after_insert --property lost_by_keep",
    r"heap_entry=one_shot --knob tick=free",
    r"rocketmq-pr7359 .*lost_by_keep",
    r"rocketmq-lmq --property no_orphan$",
    r"on_truncate=wake --property",
    r"notify=before_visible",
    r"slave=reads_only",
    r"notify_grain=batch --property",
)
"""Commands that report a violation: RocketMQ's policies, harmful knobs, and insufficient fixes."""


def _expected_exit(command: str) -> int:
    if any(re.search(part, command) for part in WORSE):
        return 1
    return 4 if "--requests any" in command and "--configuration" not in command else 0


def _takes_long(command: str) -> bool:
    return bool(re.search(r"ablate| prove |check --policy rocketmq-4.9$", command))


LONG: Final = (pytest.mark.long, pytest.mark.timeout(1800))
"""A proof for any number takes minutes, and longer on a busy machine."""


def _cases() -> list[ParameterSet]:
    """Return each command once. Commands that try every knob or number are marked long."""
    return [
        pytest.param(page, command, marks=LONG if _takes_long(command) else ())
        for page, command in dict.fromkeys(_commands())
    ]


@pytest.mark.parametrize(("page", "command"), _cases())
def test_every_command_does_what_the_page_says(page: str, command: str) -> None:
    words = shlex.split(command)
    done = CliRunner().invoke(main, words[1:])

    assert words[0] == "longpoll"
    assert done.exit_code == _expected_exit(command), f"{page}: {command}\n{done.output}"


def test_every_token_violates_the_property_of_its_section() -> None:
    """Each token of the findings breaks the named property in the stated number of steps, which is the minimum."""
    seen = set()
    for section in _sections("findings.md"):
        claims = {(name, int(steps)) for name, steps in CLAIM.findall(section)}
        shown = set()
        for token in TOKEN.findall(section):
            trace = replay(token)
            assert breaks_its_property(trace), trace.property_name
            assert trace.depth == _shortest(trace), trace.property_name
            shown.add((trace.property_name, trace.depth))
        assert shown == claims, section.splitlines()[0]
        seen |= {name for name, _ in shown}

    others = {"seen_survives", "commit_in_queue", "told_of_master_return", "no_lost_wakeup"}
    assert seen == {name for names in HAZARDS.values() for name in names} | others


def _shortest(trace: Trace) -> int | None:
    judged = select(properties_of(trace.model), [trace.property_name])
    return explore(trace.model, judged).verdict(trace.property_name).depth


def test_the_table_of_findings_is_the_pinned_one() -> None:
    """Each preset has exactly the findings in the table, and our own policies have none."""
    page = (DOCS / "findings.md").read_text("utf-8")
    violated = {
        policy: {name for entry in pinned() if entry.policy == policy for name in entry.violated} for policy in PRESETS
    }
    rows = re.findall(r"^\| \((\w)\) \|[^|]*\|(.*)\|[^|]*\|$", page, re.MULTILINE)

    assert [letter for letter, _ in rows] == list(HAZARDS)
    for letter, cells in rows:
        for policy, cell in zip(COLUMNS, map(str.strip, cells.split("|")), strict=True):
            there = violated[policy] >= set(HAZARDS[letter])
            assert (cell == "yes") == there, (letter, policy)
            assert cell in {"yes", "closed", ""}
    assert violated["strict"] == violated["strict-clone"] == set()


def test_the_redundant_knobs_are_those_of_the_policy() -> None:
    """The table has the changes and presets for which `policy.REDUNDANT` gives reasons."""
    page = (DOCS / "findings.md").read_text("utf-8")
    both = {"both": ("strict", "strict-clone")}
    listed = {
        (policy, change)
        for change, where in re.findall(r"^\| `(\w+=\w+)` \| ([\w-]+) \|", page, re.MULTILINE)
        for policy in both.get(where, (where,))
    }

    assert listed == set(REDUNDANT)
