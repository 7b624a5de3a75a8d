"""Stories of the world's aspects: several queues, tags, and the hazards that aspects are there for."""

from __future__ import annotations

from functools import cache

import pytest

from longpoll_spec.engines import explore
from longpoll_spec.engines.exploration import Exploration
from longpoll_spec.engines.manifest import pinned
from longpoll_spec.engines.tokens import replay
from longpoll_spec.policy import preset, with_knob
from longpoll_spec.render.pictures import html, mermaid, svg, text
from longpoll_spec.render.story.story import Story, story_of
from longpoll_spec.render.story.wrong_of_aspects import WRONG
from longpoll_spec.testing.cases import quick_if
from longpoll_spec.testing.models import model_named


@cache
def _explored(policy: str, bounds: str) -> Exploration:
    return explore(model_named(policy, bounds))


def _story(policy: str, bounds: str, name: str) -> Story:
    token = _explored(policy, bounds).verdict(name).token
    assert token is not None
    return story_of(replay(token))


def _flat(shown: str) -> str:
    return " ".join(shown.split())


def test_a_race_between_queues_names_its_queue() -> None:
    """With several queues each step says of which it speaks, and each bucket is a lifeline of its own."""
    story = _story("rocketmq-4.9", "queues", "lost_by_keep")
    told = _flat(text.render(story))

    assert "Bucket of q" in told
    assert "out of the bucket of q" in told
    assert "into the consume queue of q" in told
    assert "its wakeup is lost" in told
    assert [each.name for each in story.participants if each.key.startswith("bucket")] != ["Bucket"]
    for shown in (mermaid.render(story), svg.render(story), html.render(story, "token")):
        assert "Bucket of q" in shown


def test_a_batch_that_announces_one_tag_is_told() -> None:
    """A wakeup that is lost because only the last message of a batch is announced says so, with both tags."""
    story = _story("strict+notify_grain=batch", "tags", "no_lost_wakeup")
    told = _flat(text.render(story))

    assert "which has tag t" in told
    assert "and tag t" in told
    assert "announces the last message of a batch only, with tag t" in told
    assert "notify_grain=message" in told
    assert "step None" not in told


BROKEN = sorted({(entry.policy, entry.bounds, name) for entry in pinned() for name in entry.violated if name in WRONG})
ONE_OF_EACH = {name: (policy, bounds) for policy, bounds, name in reversed(BROKEN)}
DEAR = "return_is_whole"
"""Its run is the longest to find."""


def is_quick(case: tuple[str, str, str]) -> bool:
    """Whether a case is the first of its property, and cheap."""
    return ONE_OF_EACH[case[2]] == case[:2] and case[2] != DEAR


@pytest.mark.parametrize(
    "broken",
    quick_if(BROKEN, lambda case: ONE_OF_EACH[case[2]] == case[:2] and case[2] != "return_is_whole"),
    ids="-".join,
)
def test_a_hazard_of_an_aspect_says_where_it_lies_and_what_closes_it(broken: tuple[str, str, str]) -> None:
    """Each says its window and its remedy, and the sentence of the property that it breaks."""
    policy, bounds, name = broken
    story = _story(policy, bounds, name)

    assert story.wrong[:2] == WRONG[name]
    assert story.wrong[1].startswith("Remedy: ")
    assert story.wrong[2].startswith(f"This breaks the property {name}: ")


@pytest.mark.long
def test_every_property_that_some_preset_breaks_has_words() -> None:
    """No violation that the manifest pins ends with its property's sentence alone."""
    first: dict[tuple[str, str], str] = {}
    for entry in pinned():
        for name in entry.violated:
            first.setdefault((entry.policy, name), entry.bounds)
    dumb = [(policy, name) for (policy, name), bounds in first.items() if len(_story(policy, bounds, name).wrong) < 2]

    assert len({name for _, name in first}) >= 19
    assert dumb == []


def test_every_remedy_of_an_aspect_is_a_knob() -> None:
    """A remedy that names a knob names one that there is."""
    for _, remedy in WRONG.values():
        setting = remedy.partition("(knob ")[2].split(")")[0].split(",")[0]
        assert with_knob(preset("rocketmq-lmq"), setting) != preset("rocketmq-lmq"), setting
