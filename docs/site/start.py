"""The start page, the page that embeds the explorer, and the explorer itself, made by its own command.

Leaves out every other page.
"""

from __future__ import annotations

from collections.abc import Mapping
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
LANGUAGES: Final = {"en": ("index", ""), "zh": ("zh/index", "../")}
"""Language -> its start page, and the way from there to the site's top."""
WORDS: Final[dict[str, dict[str, str]]] = {
    "title": {"en": "longpoll", "zh": "longpoll：可执行的长轮询规范"},
    "what": {
        "en": "An executable specification of broker long polling, a reference broker that real RocketMQ clients "
        "can use, and a judge of recorded histories.",
        "zh": "消息系统长轮询的可执行规范，可供真实 RocketMQ 客户端使用的参考 Broker，以及对所录历史的裁判。",
    },
    "race": {
        "en": "A RocketMQ broker answers a pull at once if there is a message; if not, it *holds* the pull until one "
        "comes. A message that comes between the look and the hold wakes nobody:",
        "zh": "有消息时，RocketMQ 的 Broker 立即应答拉取；没有时，它把拉取*挂起*，直到消息到来。"
        "在查看与挂起之间到来的消息，谁也唤醒不了（图中文字为英文）：",
    },
    "find": {
        "en": "Find it by your own clicks: every button is a step that some thread of RocketMQ 4.9 may take now.",
        "zh": "自己点击，把它找出来：每个按钮都是 RocketMQ 4.9 的某个线程此刻可以走的一步。",
    },
    "window": {"en": "In a window of its own", "zh": "在单独的窗口中打开"},
    "page": {"en": "what the page can do", "zh": "页面能做什么（英文）"},
    "finding": {"en": "the finding", "zh": "这项发现（英文）"},
    "lesson": {"en": "lesson 1", "zh": "第一课"},
    "frame": {
        "en": "The explorer: the law of RocketMQ 4.9, step by step",
        "zh": "探索器：RocketMQ 4.9 的法则，一步一步来",
    },
    "on": {"en": "Where to go on", "zh": "接下来看什么"},
    "other": {"en": "[中文](zh/index.md)", "zh": "[English](../index.md)"},
    "lessons": {"en": "Lessons", "zh": "课程"},
    "terms": {"en": "Words", "zh": "词汇对照"},
    "rest": {
        "en": "Start page, explorer and lessons are in Chinese as well.",
        "zh": "首页、探索器和课程有中文；命令、参考与解释只有英文。",
    },
}
"""What the start page says -> language -> in its words."""


def frame(language: str, kind: str = "lp-explorer") -> str:
    """The explorer in a page of the language."""
    _, top = LANGUAGES[language]
    asked = "" if language == "en" else f"?lang={language}"
    title = WORDS["frame"][language]
    return f'<iframe class="{kind}" src="{top}{EXPLORER}{asked}" title="{title}" loading="lazy"></iframe>'


def pages() -> dict[str, str]:
    """Place -> text, of the start page in each language and of the page with the explorer alone."""
    made = {f"{place}.md": _index(language) for language, (place, _) in LANGUAGES.items()}
    return made | {"try-it.md": _try_it()}


def picture(token: str, *, moving: bool = False) -> str:
    """The run of a token as lanes."""
    return f'<figure class="lp-picture" tabindex="0">{lanes.render(replay(token), moving=moving)}</figure>'


def _raw(html: str) -> list[str]:
    return ["```{raw} html", html, "```", ""]


def _index(language: str) -> str:
    _, top = LANGUAGES[language]
    said = {key: words[language] for key, words in WORDS.items()}
    explorer = f"{top}{EXPLORER}{'' if language == 'en' else f'?lang={language}'}"
    lesson = f"{top}lessons/{'' if language == 'en' else f'{language}/'}1-lost-by-hold.md"
    lines = [f"# {said['title']}", "", said["other"], "", said["what"], "", said["race"], ""]
    lines += _raw(picture(LOST, moving=True))
    lines += [
        (
            f'{said["find"]} <a href="{explorer}">{said["window"]}</a> · [{said["page"]}]({top}explorer.md) · '
            f"[{said['finding']}]({top}findings.md) · [{said['lesson']}]({lesson})"
        ),
        "",
        *_raw(frame(language)),
        f"## {said['on']}",
        "",
    ]
    return "\n".join([*lines, *(_on_in_english() if language == "en" else _on(said, language)), ""])


def _on_in_english() -> list[str]:
    """The sections, and the tree of all pages, which the first page has."""
    lines = [
        f"- [{section.title}]({section.name}.md): {section.words[0].lower()}{section.words[1:]}" for section in SECTIONS
    ]
    return [
        *lines,
        "",
        WORDS["rest"]["en"],
        "",
        "```{toctree}",
        ":hidden:",
        "",
        *(section.name for section in SECTIONS),
        "```",
    ]


def _on(said: Mapping[str, str], language: str) -> list[str]:
    lessons = f"../lessons/{language}"
    return [f"- [{said['lessons']}]({lessons}/README.md)", f"- [{said['terms']}]({lessons}/terms.md)", "", said["rest"]]


def _try_it() -> str:
    lines = [
        "# Try it here",
        "",
        (
            "The law of RocketMQ 4.9 in this page: click steps until something goes wrong, or have it searched. "
            "[What the page can do](explorer.md) tells the rest."
        ),
        "",
        *_raw(frame("en", "lp-explorer tall")),
    ]
    return "\n".join(lines)


def write_extras(target: Path) -> None:
    """Write what is copied into the site as it is: the explorer, by the command that its page tells of."""
    export.main(["--to", "explorer", "--policy", POLICY, str(target / "explorer")], standalone_mode=False)
