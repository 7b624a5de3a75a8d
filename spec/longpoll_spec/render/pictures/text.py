"""A story as numbered steps in plain text.

Without colour: the same text for a terminal, a file and a message.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from longpoll_spec.render.story.rocketmq_names import participant_of
from longpoll_spec.render.story.story import Scene, Story

WIDTH = 100


def render(story: Story) -> str:
    """The story as text that ends with a newline."""
    return "\n".join(_lines(story)) + "\n"


def _lines(story: Story) -> Iterable[str]:
    yield story.title
    yield f"bounds: {story.bounds}"
    yield ""
    yield "Who takes part:"
    width = max((len(each.name) for each in story.participants), default=0)
    for each in story.participants:
        yield f"  {each.name:<{width}}  {each.java}"
    yield ""
    for scene in story.scenes:
        yield from _scene(scene)
    if story.wrong:
        yield ""
        yield "What is wrong:"
        for sentence in story.wrong:
            yield from textwrap.wrap(sentence, WIDTH, initial_indent="  ", subsequent_indent="  ")


def _scene(scene: Scene) -> Iterable[str]:
    text = f"{who(scene)} {scene.sentence}".strip()
    head = f"{scene.number:>3}. "
    yield from textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
    indent = " " * len(head)
    action = f"[{scene.action}]" + (f" {scene.place}" if scene.place else "")
    yield from textwrap.wrap(action, WIDTH, initial_indent=indent, subsequent_indent=indent)
    if scene.changes:
        yield from textwrap.wrap("; ".join(scene.changes), WIDTH, initial_indent=indent, subsequent_indent=indent)


def who(scene: Scene) -> str:
    """The actor with its Java thread; empty when time passes."""
    if not scene.source:
        return ""
    actor = participant_of(scene.source)
    return f"{actor.name} ({actor.java})"
