"""The start page, the page that embeds the explorer, and the explorer itself, made by its own command.

Leaves out every other page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from docs.site.sections import SECTIONS

from longpoll.commands.export import export
from longpoll_spec.engines.tokens import replay
from longpoll_spec.render.pictures import lanes

POLICY: Final = "rocketmq-4.9"
EXPLORER: Final = "explorer/longpoll_rocketmq_4_9_tiny.html"
LOST: Final = "lp1.lqxyb2NrZXRtcS00LjmQlAIBAQKsbG9zdF9ieV9ob2xkzhApc3qWAAIEAQgGiskZ0w"
"""The shortest run in which Java 4.9 loses a wakeup: finding (a)."""
FRAME: Final = (
    f'<iframe class="lp-explorer" src="{EXPLORER}" title="The explorer: the law of RocketMQ 4.9, step by step" '
    'loading="lazy"></iframe>'
)


def pages() -> dict[str, str]:
    """Place -> text, of the start page and of the one with the explorer alone."""
    return {"index.md": _index(), "try-it.md": _try_it()}


def picture(token: str, *, moving: bool = False) -> str:
    """The run of a token as lanes."""
    return f'<figure class="lp-picture" tabindex="0">{lanes.render(replay(token), moving=moving)}</figure>'


def _raw(html: str) -> list[str]:
    return ["```{raw} html", html, "```", ""]


def _index() -> str:
    lines = [
        "# longpoll",
        "",
        (
            "An executable specification of broker long polling, a reference broker that real RocketMQ clients "
            "can use, and a judge of recorded histories."
        ),
        "",
        (
            "A RocketMQ broker answers a pull at once if there is a message; if not, it *holds* the pull until one "
            "comes. A message that comes between the look and the hold wakes nobody:"
        ),
        "",
        *_raw(picture(LOST, moving=True)),
        (
            "Find it by your own clicks: every button is a step that some thread of RocketMQ 4.9 may take now. "
            f'<a href="{EXPLORER}">In a window of its own</a> · [what the page can do](explorer.md) · '
            "[the finding](findings.md) · [lesson 1](lessons/1-lost-by-hold.md)"
        ),
        "",
        *_raw(FRAME),
        "## Where to go on",
        "",
        *(
            f"- [{section.title}]({section.name}.md): {section.words[0].lower()}{section.words[1:]}"
            for section in SECTIONS
        ),
        "",
        "```{toctree}",
        ":hidden:",
        "",
        *(section.name for section in SECTIONS),
        "```",
        "",
    ]
    return "\n".join(lines)


def _try_it() -> str:
    lines = [
        "# Try it here",
        "",
        (
            "The law of RocketMQ 4.9 in this page: click steps until something goes wrong, or have it searched. "
            "[What the page can do](explorer.md) tells the rest."
        ),
        "",
        *_raw(FRAME.replace('class="lp-explorer"', 'class="lp-explorer tall"')),
    ]
    return "\n".join(lines)


def write_extras(target: Path) -> None:
    """Write what is copied into the site as it is: the explorer, by the command that its page tells of."""
    export.main(["--to", "explorer", "--policy", POLICY, str(target / "explorer")], standalone_mode=False)
