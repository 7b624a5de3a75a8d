"""A run is described in RocketMQ's terms as text, mermaid diagram, HTML page, JSON and picture."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import attrs
import pytest
from attrs import frozen
from click.testing import CliRunner
from docs.site import figures
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.spec.cases import model_named, quick_if
from model_tests.support.spec.strategies import runs

from longpoll.cli import main
from longpoll_spec.bounds import EXPLORATIONS, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.evaluate import trace_of
from longpoll_spec.engines.exploration import Exploration
from longpoll_spec.engines.manifest import pinned
from longpoll_spec.engines.tokens import replay
from longpoll_spec.errors import UserError
from longpoll_spec.model import ACTION_NAMES, Model, Trace
from longpoll_spec.policy import PRESETS, preset, with_knob
from longpoll_spec.render.export.traces import trace_json
from longpoll_spec.render.notation import state_text
from longpoll_spec.render.pictures import lanes, svg
from longpoll_spec.render.pictures.svg import width_of, wrapped
from longpoll_spec.render.pictures.text import story_html, story_mermaid, story_text
from longpoll_spec.render.rocketmq_names import participant_of, place_of
from longpoll_spec.render.story import WRONG, Story, story_of
from longpoll_spec.specification import properties_of, specification_of
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
    return explore(specification_of(policy, named("tiny", policy)), engine="python")


@cache
def _trace(name: str) -> Trace:
    token = _explored().verdict(name).token
    assert token is not None
    return replay(token)


def _story(name: str) -> Story:
    return story_of(_trace(name))


def _flat(shown: str) -> str:
    return " ".join(shown.split())


def test_suspend_after_notify_is_described() -> None:
    story = _story("lost_by_hold")
    told = _flat(story_text(story))
    steps = {scene.action: scene for scene in story.scenes}

    assert steps["pull_read(0)"].number < steps["notify_start"].number < steps["hold(0)"].number
    assert "Pull thread 0 (PullMessageProcessor) reads offset 0 and finds nothing, as maxOffset is 0" in told
    assert "Dispatcher (ReputMessageService) goes to the bucket and finds no request in it" in told
    assert "puts request 0 into the bucket, waiting for offset 0, although maxOffset is 1 by now" in told
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
        ("answered_by_deadline", "and time passed"),
        ("woken_within", "Time passes while request"),
        ("nothing_dropped", "waits for an answer that will never come"),
        ("dropped_by_reject", "submit() throws RejectedExecutionException"),
        ("dropped_by_throw", "no try/finally"),
        ("answered_on_stop", "is in the table of a stopped broker"),
    ],
)
def test_every_violation_has_a_diagnosis(name: str, words: str) -> None:
    story = _story(name)

    assert any(words in sentence for sentence in story.wrong)
    assert story.wrong[-1].startswith(f"This breaks the property {name}: ")
    assert story.title == f"rocketmq-4.9: {name} is violated, in {len(story.scenes)} steps"


def test_a_late_answer_of_another_cause_does_not_name_the_scan() -> None:
    """If an answer is late for another reason, the diagnosis does not name the scan as the cause."""
    policy = with_knob(preset("strict"), "on_stop=silent")
    explored = explore(specification_of(policy, named("tiny", policy)))
    token = explored.verdict("queued_by_deadline").token
    assert token is not None
    told = _flat(story_text(story_of(replay(token))))

    assert "time passed" in told
    assert "checkHoldRequest" not in told


def test_a_run_without_a_violation_has_no_diagnosis() -> None:
    story = _story("answered_after_wake")
    bare = story_of(attrs.evolve(_trace("answered_after_wake"), property_name=""))

    assert story.wrong == ()
    assert "What is wrong" not in story_text(story)
    assert bare.wrong == ()
    assert bare.title == f"rocketmq-4.9: a run, in {len(bare.scenes)} steps"


@pytest.mark.parametrize("name", VIOLATED)
def test_mermaid_is_well_formed(name: str) -> None:
    lines = story_mermaid(_story(name)).splitlines()
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
    """The picture parses, has a mark for each step, loads nothing, and keeps every text within the sheet."""
    story = _story(name)
    shown = lanes.render(_trace(name))
    root = ET.fromstring(shown)  # noqa: S314 - made a line above
    space = "{http://www.w3.org/2000/svg}"
    numbers = [each.text for each in root.iter(f"{space}text") if each.get("class") == "number"]

    assert root.tag == f"{space}svg"
    assert numbers == [str(scene.number) for scene in story.scenes]
    assert not re.search(r"<script|<image|href|url\(|@import|onload", shown)
    assert "prefers-color-scheme:dark" in shown
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for each in root.iter(f"{space}text"):
        assert 0 <= float(each.attrib["x"]) <= width
        assert 0 <= float(each.attrib["y"]) <= height


def test_everything_is_escaped() -> None:
    evil = '<script>alert("x")</script>;#'
    story = _story("lost_by_hold")
    scenes = tuple(attrs.evolve(scene, short=evil, sentence=evil, changes=(evil,)) for scene in story.scenes)
    hostile = attrs.evolve(story, policy=evil, bounds=evil, scenes=scenes, wrong=(evil,))

    picture = svg.picture("lp", (1, 1), evil, "", [svg.text("name", 0, 0, evil)])
    for shown in (picture, story_html(hostile, picture, evil), story_mermaid(hostile)):
        assert "<script" not in shown
    assert "#59;" in story_mermaid(hostile)
    ET.fromstring(picture)  # noqa: S314 - made here


def test_the_page_has_the_picture_the_steps_and_the_token() -> None:
    """The page is one file with the picture, every step, the violation and the command that replays the run."""
    token = _explored().verdict("lost_by_hold").token or ""
    story = _story("lost_by_hold")
    page = story_html(story, lanes.render(_trace("lost_by_hold")), token)

    assert page.startswith("<!doctype html>")
    assert page.count("<li>") == len(story.scenes)
    assert "<svg" in page
    assert f"longpoll explain {token}" in page
    assert "What is wrong" in page


def test_the_json_of_a_trace_has_every_state() -> None:
    trace = _trace("lost_by_hold")
    made: dict[str, Any] = trace_json(trace, story_of(trace), "token")

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
        specification_of(preset(name), named(bounds, preset(name)))
        for bounds in EXPLORATIONS
        for name in ("strict", "rocketmq-4.9", "rocketmq-lmq")
    ]
    return [specification_of(policy, named("tiny", policy)) for policy in policies] + beyond


@given(data=st.data())
def test_every_run_has_a_description(data: st.DataObject) -> None:
    model = data.draw(st.sampled_from(_models()))
    actions, _state = data.draw(runs(model))
    trace = trace_of(model, actions)
    story = story_of(trace)

    assert [scene.action for scene in story.scenes] == [action.label for action in actions]
    for scene in story.scenes:
        assert scene.sentence
        assert scene.short
        assert (scene.source == "") == (scene.target == "") == (scene.action == "tick")
    ET.fromstring(lanes.render(trace))  # noqa: S314 - made here
    assert story_text(story).count("\n") > len(actions)


def test_every_action_has_a_performer_and_a_place() -> None:
    seen: set[str] = set()
    for model in _models():
        for action in model.actions:
            seen.add(action.name)
            if action.name != "tick":
                assert participant_of(thread_of(action)).java
                assert place_of(action)

    assert seen == set(ACTION_NAMES)


def test_a_state_is_shown_by_its_differences_from_the_first_state() -> None:
    policy = preset("strict-clone")
    model = specification_of(policy, named("tiny", policy))
    values = dict(zip((each.name for each in model.variables), model.initial, strict=True))
    values |= {"phase_1": model.state.phases["kept_by_scanner"], "scanner": 1, "open_1": 1, "deadline_1": 7}
    shown = state_text(model, tuple(values.values()), {"hold_ticks": 9})

    assert "request 1: phase kept_by_scanner, deadline 7, open yes" in shown
    assert "scanner walking" in shown
    assert "request 0" not in shown
    assert "parameters: hold_ticks 9" in shown


def test_a_property_without_its_own_diagnosis_shows_its_sentence() -> None:
    model = specification_of(preset("strict"), named("tiny", preset("strict")))
    item = next(each for each in properties_of(model) if each.name == "time_can_pass")
    story = story_of(trace_of(model, [], "time_can_pass"))

    assert story.wrong == (f"This breaks the property time_can_pass: {item.sentence}",)


@cache
def _explored_at(policy: str, bounds: str) -> Exploration:
    return explore(model_named(policy, bounds))


def _trace_at(policy: str, bounds: str, name: str) -> Trace:
    token = _explored_at(policy, bounds).verdict(name).token
    assert token is not None
    return replay(token)


def _told(policy: str, bounds: str, name: str) -> Story:
    return story_of(_trace_at(policy, bounds, name))


def test_a_race_between_queues_names_its_queue() -> None:
    story = _told("rocketmq-4.9", "queues", "lost_by_keep")
    told = _flat(story_text(story))

    assert "Bucket of q" in told
    assert "out of the bucket of q" in told
    assert "into the consume queue of q" in told
    assert "its wakeup is lost" in told
    assert [each.name for each in story.participants if each.key.startswith("bucket")] != ["Bucket"]
    assert "Bucket of q" in story_mermaid(story)
    assert "Bucket of q" in lanes.render(_trace_at("rocketmq-4.9", "queues", "lost_by_keep"))


BROKEN = sorted({(entry.policy, entry.bounds, name) for entry in pinned() for name in entry.violated if name in WRONG})
ONE_OF_EACH = {name: (policy, bounds) for policy, bounds, name in reversed(BROKEN)}


@pytest.mark.parametrize(
    "broken",
    quick_if(
        BROKEN,
        lambda case: ONE_OF_EACH[case[2]] == case[:2] and case[2] != "round_is_whole" and case[1] != "role",
    ),
    ids="-".join,
)
def test_the_diagnosis_of_a_feature_has_its_window_and_its_fix(broken: tuple[str, str, str]) -> None:
    """Each finding has its window, its fix and the sentence of the property that it breaks."""
    policy, bounds, name = broken
    story = _told(policy, bounds, name)

    assert story.wrong[:2] == WRONG[name]
    assert story.wrong[1].startswith("Fix: ")
    assert story.wrong[2].startswith(f"This breaks the property {name}: ")


@pytest.mark.long
def test_every_property_that_a_preset_breaks_has_a_diagnosis() -> None:
    first: dict[tuple[str, str], str] = {}
    for entry in pinned():
        for name in entry.violated:
            first.setdefault((entry.policy, name), entry.bounds)
    dumb = [(policy, name) for (policy, name), bounds in first.items() if len(_told(policy, bounds, name).wrong) < 2]

    assert len({name for _, name in first}) >= 19
    assert dumb == []


SPACE: Final = "{http://www.w3.org/2000/svg}"
FINDINGS: Final = Path(__file__).parents[2] / "docs" / "findings.md"
TOKENS: Final = re.findall(r"^longpoll explain (\S+)$", FINDINGS.read_text("utf-8"), re.MULTILINE)


@frozen
class Written:
    text: str
    left: float
    right: float
    top: float
    bottom: float

    def meets(self, other: Written) -> bool:
        apart = self.right <= other.left or other.right <= self.left
        return not apart and not (self.bottom <= other.top or other.bottom <= self.top)


def written(element: ET.Element, x: float = 0.0, y: float = 0.0) -> list[Written]:
    moved = re.fullmatch(r"translate\(([\d.]+) ([\d.]+)\)", element.get("transform", ""))
    if moved:
        x, y = x + float(moved[1]), y + float(moved[2])
    if element.tag == f"{SPACE}text":
        return [_placed(element, x, y)]
    return [each for child in element for each in written(child, x, y)]


def _placed(element: ET.Element, x: float, y: float) -> Written:
    classes = element.get("class", "").split()
    size = lanes.SMALL if {"java", "inside", "tick", "number"} & set(classes) else lanes.SIZE
    text = element.text or ""
    width = width_of(text, size, bold="number" in classes)
    left = x + float(element.get("x", "0")) - (width / 2 if {"number", "middle"} & set(classes) else 0)
    base = y + float(element.get("y", "0"))
    return Written(text, left, left + width, base - 0.75 * size, base + 0.2 * size)


def wrong(picture: str) -> list[str]:
    root = ET.fromstring(picture)  # noqa: S314 - it is our own text
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    texts = written(root)
    found = [
        f"{each.text!r} lies outside"
        for each in texts
        if each.left < 0 or each.right > width + 0.5 or each.top < 0 or each.bottom > height
    ]
    found += [
        f"{one.text!r} lies on {other.text!r}"
        for number, one in enumerate(texts)
        for other in texts[number + 1 :]
        if one.meets(other)
    ]
    return found + [
        f"{text.text!r} runs out of its box" for text in texts for box in _boxes(root) if _leaves(text, box)
    ]


def _boxes(root: ET.Element) -> list[Written]:
    kinds = {"box", "bar", "head", "bad"}
    boxes = [each for each in root.iter(f"{SPACE}rect") if each.get("class") in kinds]
    places = [[float(each.attrib[name]) for name in ("x", "y", "width", "height")] for each in boxes]
    return [Written("", x, x + width, y, y + height) for x, y, width, height in places]


def _leaves(text: Written, box: Written) -> bool:
    x, y = (text.left + text.right) / 2, (text.top + text.bottom) / 2
    inside = box.left < x < box.right and box.top < y < box.bottom
    return inside and (text.left < box.left or text.right > box.right)


@pytest.mark.parametrize("token", TOKENS)
def test_every_finding_is_drawn(token: str) -> None:
    trace = replay(token)
    story = story_of(trace)
    picture = lanes.render(trace)
    root = ET.fromstring(picture)  # noqa: S314 - it is our own text
    marks = [each.text for each in root.iter(f"{SPACE}text") if each.get("class") == "number"]

    assert marks == [str(scene.number) for scene in story.scenes]
    assert story.wrong[0].split()[0] in picture
    assert wrong(picture) == []
    assert "prefers-color-scheme:dark" in picture


def test_every_finding_of_the_page_has_a_token() -> None:
    sections = re.split(r"^## ", FINDINGS.read_text("utf-8"), flags=re.MULTILINE)[1:]
    letters = {
        letter for text in sections if "longpoll explain" in text for letter in re.findall(r"\((\w)\)", text[:20])
    }

    assert letters == set("abcdeghijlmop")
    assert len(TOKENS) >= 19


def test_a_moving_picture_has_the_same_steps() -> None:
    trace = replay(TOKENS[0])
    moving = lanes.render(trace, moving=True)

    assert [f"@keyframes lp-step-{number}{{" in moving for number in range(1, 8)] == [True] * 6 + [False]
    assert "@media (prefers-reduced-motion:no-preference)" in moving
    assert wrong(moving) == []


def test_a_long_text_is_wrapped() -> None:
    lines = wrapped("a bucket and aVeryLongNameOfSomeMethodThatHasNoSpaces", 80, 13)

    assert all(width_of(line, 13) <= 80 for line in lines)
    assert "".join(lines).replace(" ", "") == "abucketandaVeryLongNameOfSomeMethodThatHasNoSpaces"
    assert width_of("i", 10) < width_of("W", 10) < width_of("W", 10, bold=True)


def test_explain_writes_a_picture(tmp_path: Path) -> None:
    told = CliRunner().invoke(main, ["explain", TOKENS[0], "--format", "svg", "--output", str(tmp_path / "race.svg")])

    assert told.exit_code == 0, told.output
    assert (tmp_path / "race.svg").read_text() == lanes.render(replay(TOKENS[0])) + "\n"


PAGE = (Path(__file__).parents[2] / "docs" / "polling.md").read_text("utf-8")


def test_the_page_has_the_measured_figures() -> None:
    found = figures.measured()

    assert figures.table(found) in PAGE
    assert figures.machine(found) in PAGE


def test_a_file_without_the_benchmarks_figures_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "polling.json"
    for content in (None, "no", "{}", json.dumps({"results": []}), json.dumps({"results": [{"way": "a"}]})):
        if content is not None:
            path.write_text(content)
        with pytest.raises(UserError, match="no figures of polling_bench; write it anew"):
            figures.measured(path)
