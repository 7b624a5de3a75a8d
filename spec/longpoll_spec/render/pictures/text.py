"""Writes a story as numbered steps in plain text, as a mermaid sequence diagram, or as an HTML page.

The text has no colours, so it is the same on a terminal, in a file and in a message. The mermaid diagram is for
Markdown and leaves out the locations in Java. The page is one file without scripts, with the picture, all steps and the
violation. All text in the page is escaped.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from html import escape
from typing import Final

from longpoll_spec.render.rocketmq_names import participant_of
from longpoll_spec.render.story import Scene, Story

WIDTH = 100


def story_text(story: Story) -> str:
    """The story as plain text, which ends with a newline."""
    return "\n".join(_lines(story)) + "\n"


def _lines(story: Story) -> Iterable[str]:
    yield story.title
    yield f"bounds: {story.bounds}"
    yield ""
    known = [each for each in story.participants if each.java]
    if known:
        yield "Who takes part:"
        width = max(len(each.name) for each in known)
        yield from (f"  {each.name:<{width}}  {each.java}" for each in known)
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
    """The actor of a step with its Java thread; empty if time passes."""
    if not scene.source:
        return ""
    actor = participant_of(scene.source)
    return f"{actor.name} ({actor.java})" if actor.java else f"{actor.name}:"


NOTE_WIDTH: Final = 80
"""The characters per line of the note about the violation."""
_UNSAFE: Final = re.compile(r"[;#<>\n]")


def story_mermaid(story: Story) -> str:
    """The story as a mermaid `sequenceDiagram`, which ends with a newline."""
    return "\n".join(_mermaid_lines(story)) + "\n"


def _mermaid_lines(story: Story) -> Iterable[str]:
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


STYLE: Final = """
:root{color-scheme:light dark}
body{font:15px/1.55 system-ui,sans-serif;margin:0;color:#1c2733;background:#fff}
main{max-width:80rem;margin:2rem auto;padding:0 1rem}
figure{margin:1rem 0;overflow-x:auto}
ol{padding-left:2rem}li{margin:.6rem 0}
code,.place,.change{font:13px/1.5 ui-monospace,monospace}
.place,.change{display:block;color:#66727d;overflow-wrap:anywhere}
.wrong{border-left:4px solid #b3261e;padding:.1rem 1rem;background:#fdecea}
@media (prefers-color-scheme:dark){
body{color:#e3e8ec;background:#14191e}.place,.change{color:#9aa7b1}.wrong{background:#3a1b1a}}
"""


def story_html(story: Story, picture: str, token: str) -> str:
    """The story of a token as one HTML file. `picture` is the SVG that `lanes` draws."""
    steps = "".join(_step(scene) for scene in story.scenes)
    wrong = "".join(f"<p>{escape(sentence)}</p>" for sentence in story.wrong)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(story.title)}</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{escape(story.title)}</h1><p>{escape(story.bounds)}</p>"
        f"<figure>{picture}</figure>"
        f"<h2>Step by step</h2><ol>{steps}</ol>"
        + (f'<h2>What is wrong</h2><div class="wrong">{wrong}</div>' if wrong else "")
        + f"<p>Again: <code>longpoll explain {escape(token)}</code></p></main></body></html>\n"
    )


def _step(scene: Scene) -> str:
    changes = "; ".join(scene.changes)
    return (
        f"<li>{escape(f'{who(scene)} {scene.sentence}'.strip())}"
        f'<span class="place">[{escape(scene.action)}] {escape(scene.place)}</span>'
        + (f'<span class="change">{escape(changes)}</span>' if changes else "")
        + "</li>"
    )
