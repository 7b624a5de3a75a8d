"""The known races of RocketMQ 4.9 are told in its own terms, in every format, from the tokens themselves."""

from __future__ import annotations

import re
from functools import cache
from typing import Any
from xml.etree import ElementTree as ET

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll_spec.bounds import EXPLORATIONS, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.evaluate import trace_of
from longpoll_spec.engines.exploration import Exploration
from longpoll_spec.engines.tokens import replay
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.model import ACTION_NAMES, Model, Trace
from longpoll_spec.policy import PRESETS, preset, with_knob
from longpoll_spec.render import states
from longpoll_spec.render.pictures import html, machine, mermaid, svg, text
from longpoll_spec.render.story.story import Story, story_of
from longpoll_spec.render.story.terms_of_rocketmq import participant_of, place_of
from longpoll_spec.testing.strategies import runs
from longpoll_spec.threads import thread_of

VIOLATED = (
    "no_lost_wakeup",
    "lost_by_hold",
    "lost_by_keep",
    "queued_by_deadline",
    "answered_by_deadline",
    "woken_within",
    "nothing_dropped",
    "dropped_by_reject",
    "dropped_by_throw",
    "answered_on_stop",
)


@cache
def _explored() -> Exploration:
    policy = preset("rocketmq-4.9")
    return explore(law_of(policy, named("tiny", policy)), engine="python")


@cache
def _trace(name: str) -> Trace:
    token = _explored().verdict(name).token
    assert token is not None
    return replay(token)


def _story(name: str) -> Story:
    return story_of(_trace(name))


def _flat(shown: str) -> str:
    return " ".join(shown.split())


def test_suspend_after_notify_is_told() -> None:
    """Race (a): the dispatcher finds the bucket empty between the pull thread's read and its hold."""
    story = _story("lost_by_hold")
    told = _flat(text.render(story))
    steps = {scene.action: scene for scene in story.scenes}

    assert steps["pull_read(0)"].number < steps["notify_start"].number < steps["hold(0)"].number
    assert "Pull thread 0 (PullMessageProcessor) reads offset 0 and finds nothing, for maxOffset is 0" in told
    assert "Dispatcher (ReputMessageService) goes to the bucket and finds no request in it" in told
    assert "puts request 0 into the bucket, waiting for offset 0, though maxOffset is 1 by now" in told
    assert "PullRequestHoldService.suspendPullRequest" in told
    window = (
        f"between step {steps['pull_read(0)'].number}, where PullMessageProcessor.processRequest has read the store, "
        f"and step {steps['hold(0)'].number}"
    )
    assert window in told
    assert f"notifyMessageArriving in step {steps['notify_start'].number} came between them" in told
    assert "recheck_after_hold=after_insert" in told


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_lost_wakeup", "its wakeup is lost"),
        ("answered_by_deadline", "and time went on"),
        ("woken_within", "Time passes while request"),
        ("nothing_dropped", "waits for an answer that nobody will send"),
        ("dropped_by_reject", "submit() throws RejectedExecutionException"),
        ("dropped_by_throw", "no try/finally"),
        ("answered_on_stop", "stands in the table of a stopped broker"),
    ],
)
def test_every_violation_says_what_is_wrong(name: str, words: str) -> None:
    """Each violated property of rocketmq-4.9 ends with its own sentence and the property's."""
    story = _story(name)

    assert any(words in sentence for sentence in story.wrong)
    assert story.wrong[-1].startswith(f"This breaks the property {name}: ")
    assert story.title == f"rocketmq-4.9: {name} is violated, in {len(story.scenes)} steps"


def test_the_remedy_belongs_to_the_policy_that_lacks_it() -> None:
    """A late answer for another reason than the scan is not blamed on the scan."""
    policy = with_knob(preset("strict"), "on_stop=silent")
    explored = explore(law_of(policy, named("tiny", policy)))
    token = explored.verdict("queued_by_deadline").token
    assert token is not None
    told = _flat(text.render(story_of(replay(token))))

    assert "time went on" in told
    assert "checkHoldRequest" not in told


def test_a_run_that_is_meant_to_be_reached_has_nothing_wrong() -> None:
    """A witness of a `sometimes` property is told without blame, and so is a run without a property."""
    story = _story("answered_after_wake")
    bare = story_of(attrs.evolve(_trace("answered_after_wake"), property_name=""))

    assert story.wrong == ()
    assert "What is wrong" not in text.render(story)
    assert bare.wrong == ()
    assert bare.title == f"rocketmq-4.9: a run, in {len(bare.scenes)} steps"


@pytest.mark.parametrize("name", VIOLATED)
def test_mermaid_is_well_formed(name: str) -> None:
    """Every line is a participant, a comment, an arrow between known participants, or a note over known ones."""
    lines = mermaid.render(_story(name)).splitlines()
    participants = {found[1] for line in lines if (found := re.fullmatch(r"    participant (\w+) as [^;]+", line))}
    arrows = [re.fullmatch(r"    (\w+)->>(\w+): \d+\. \S.*", line) for line in lines]
    notes = [re.fullmatch(r"    Note over (\w+)(?:,(\w+))?: \S.*", line) for line in lines]

    assert lines[0] == "sequenceDiagram"
    assert lines[1].startswith("    %% ")
    used = {key for found in (*arrows, *notes) if found is not None for key in found.groups() if key is not None}
    assert used == participants
    shown = sum(found is not None for found in (*arrows, *notes))
    assert shown == len(_story(name).scenes) + 1
    assert len(lines) == 2 + len(participants) + shown


@pytest.mark.parametrize("name", VIOLATED)
def test_svg_is_xml_within_its_sheet(name: str) -> None:
    """The chart parses, has a row for each step, loads nothing, and every mark is on the sheet."""
    story = _story(name)
    shown = svg.render(story)
    root = ET.fromstring(shown)  # noqa: S314 - made a line above
    space = "{http://www.w3.org/2000/svg}"
    numbers = [each.text for each in root.iter(f"{space}text") if each.get("class") == "number"]

    assert root.tag == f"{space}svg"
    assert numbers == [f"{scene.number}." for scene in story.scenes]
    assert not re.search(r"<script|<image|href|url\(|@import|onload", shown)
    assert "prefers-color-scheme:dark" in shown
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for each in root.iter(f"{space}text"):
        assert 0 <= float(each.attrib["x"]) <= width
        assert 0 <= float(each.attrib["y"]) <= height


def test_everything_is_escaped() -> None:
    """A hostile word in a story reaches neither SVG, page nor diagram as markup."""
    evil = '<script>alert("x")</script>;#'
    story = _story("lost_by_hold")
    scenes = tuple(attrs.evolve(scene, short=evil, sentence=evil, changes=(evil,)) for scene in story.scenes)
    hostile = attrs.evolve(story, policy=evil, bounds=evil, scenes=scenes, wrong=(evil,))

    for shown in (svg.render(hostile), html.render(hostile, evil), mermaid.render(hostile)):
        assert "<script" not in shown
    assert "#59;" in mermaid.render(hostile)
    ET.fromstring(svg.render(hostile))  # noqa: S314 - made here


def test_the_page_holds_chart_steps_and_token() -> None:
    """The page is one file with the chart, every step, what is wrong and how to see it again."""
    token = _explored().verdict("lost_by_hold").token or ""
    story = _story("lost_by_hold")
    page = html.render(story, token)

    assert page.startswith("<!doctype html>")
    assert page.count("<li>") == len(story.scenes)
    assert "<svg" in page
    assert f"longpoll explain {token}" in page
    assert "What is wrong" in page


def test_plain_data_has_every_state() -> None:
    """The JSON form has each step with the state it led to, and the words beside it."""
    trace = _trace("lost_by_hold")
    made: dict[str, Any] = machine.render(trace, story_of(trace), "token")

    assert made["policy"] == "rocketmq-4.9"
    assert made["property"] == "lost_by_hold"
    assert [step["action"] for step in made["steps"]] == [
        each.action.label for each in trace.steps[1:] if each.action is not None
    ]
    assert [tuple(step["state"].values()) for step in made["steps"]] == [each.state for each in trace.steps[1:]]
    assert made["bounds"] == {
        "requests": 2,
        "messages": 1,
        "hold_ticks": 1,
        "scan_ticks": 2,
        "queues": 1,
        "tags": 1,
        "aspects": [],
    }


@cache
def _models() -> list[Model]:
    knobs = ("recheck_after_hold=in_lock", "on_throw=keep_rest", "heap_entry=one_shot", "on_reject=drop")
    policies = [*PRESETS.values(), *(with_knob(preset("strict-clone"), knob) for knob in knobs)]
    beyond = [
        law_of(preset(name), named(bounds, preset(name)))
        for bounds in EXPLORATIONS
        for name in ("strict", "rocketmq-4.9", "rocketmq-lmq")
    ]
    return [law_of(policy, named("tiny", policy)) for policy in policies] + beyond


@given(data=st.data())
def test_any_run_can_be_told(data: st.DataObject) -> None:
    """Every run of every policy is told: each step by someone, to someone, with words that fit its action."""
    model = data.draw(st.sampled_from(_models()))
    actions, _state = data.draw(runs(model))
    story = story_of(trace_of(model, actions))

    assert [scene.action for scene in story.scenes] == [action.label for action in actions]
    for scene in story.scenes:
        assert scene.sentence
        assert scene.short
        assert (scene.source == "") == (scene.target == "") == (scene.action == "tick")
    ET.fromstring(svg.render(story))  # noqa: S314 - made here
    assert text.render(story).count("\n") > len(actions)


def test_every_action_has_a_performer_and_a_place() -> None:
    """No action of the law is without whoever does it and its place in RocketMQ's source."""
    seen: set[str] = set()
    for model in _models():
        for action in model.actions:
            seen.add(action.name)
            if action.name != "tick":
                assert participant_of(thread_of(action)).java
                assert place_of(action)

    assert seen == set(ACTION_NAMES)


def test_a_state_shows_what_is_odd_about_it() -> None:
    """A state is shown by what differs from the first one, in words where values have words."""
    policy = preset("strict-clone")
    model = law_of(policy, named("tiny", policy))
    values = dict(zip((each.name for each in model.variables), model.initial, strict=True))
    values |= {"phase_1": model.state.phases["kept_by_scanner"], "scanner": 1, "open_1": 1, "deadline_1": 7}
    shown = states.render(model, tuple(values.values()), {"hold_ticks": 9})

    assert "request 1: phase kept_by_scanner, deadline 7, open yes" in shown
    assert "scanner walking" in shown
    assert "request 0" not in shown
    assert "parameters: hold_ticks 9" in shown


def test_properties_without_a_teller_still_say_their_sentence() -> None:
    """A property that has no words of its own is told by its sentence."""
    model = law_of(preset("strict"), named("tiny", preset("strict")))
    item = next(each for each in properties_of(model) if each.name == "time_can_pass")
    story = story_of(trace_of(model, [], "time_can_pass"))

    assert story.wrong == (f"This breaks the property time_can_pass: {item.sentence}",)
