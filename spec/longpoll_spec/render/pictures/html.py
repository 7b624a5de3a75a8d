"""A story as one page: chart, steps in full, and what is wrong. One file without scripts, everything escaped."""

from __future__ import annotations

from html import escape
from typing import Final

from longpoll_spec.render.pictures import svg
from longpoll_spec.render.pictures.text import who
from longpoll_spec.render.story.story import Scene, Story

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


def render(story: Story, token: str) -> str:
    """The story of a token as the text of one HTML file."""
    steps = "".join(_step(scene) for scene in story.scenes)
    wrong = "".join(f"<p>{escape(sentence)}</p>" for sentence in story.wrong)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(story.title)}</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{escape(story.title)}</h1><p>{escape(story.bounds)}</p>"
        f"<figure>{svg.render(story)}</figure>"
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
