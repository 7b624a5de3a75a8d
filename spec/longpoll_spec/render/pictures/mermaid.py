"""A story as a mermaid sequence diagram, for Markdown.

Locations in Java are only in the text form.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import Final

from longpoll_spec.render.story.story import Story

NOTE_WIDTH: Final = 80
"""Characters per line of the last note."""
_UNSAFE: Final = re.compile(r"[;#<>\n]")


def render(story: Story) -> str:
    """The story as one `sequenceDiagram`, which ends with a newline."""
    return "\n".join(_lines(story)) + "\n"


def _lines(story: Story) -> Iterable[str]:
    yield "sequenceDiagram"
    yield f"    %% {_plain(story.title)}"
    ids = {each.key: each.key.replace(" ", "_") for each in story.participants}
    for each in story.participants:
        yield f"    participant {ids[each.key]} as {_plain(each.name)}<br/>{_plain(each.java)}"
    everyone = [ids[each.key] for each in story.participants]
    across = f"{everyone[0]},{everyone[-1]}" if len(everyone) > 1 else "".join(everyone)
    for scene in story.scenes:
        text = _plain(f"{scene.number}. {scene.short}")
        if scene.source:
            yield f"    {ids[scene.source]}->>{ids[scene.target]}: {text}"
        elif across:
            yield f"    Note over {across}: {text}"
    if story.wrong and across:
        lines = textwrap.wrap(story.wrong[0], NOTE_WIDTH)
        yield f"    Note over {across}: {'<br/>'.join(map(_plain, lines))}"


def _plain(text: str) -> str:
    return _UNSAFE.sub(lambda found: " " if found[0] == "\n" else f"#{ord(found[0])};", text)
