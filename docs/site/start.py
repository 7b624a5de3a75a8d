"""The start page, the page that embeds the explorer, and the explorer itself, which its own command generates."""

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
README: Final = Path(__file__).parents[2] / "README.md"
HOME: Final = '<span id="home">'
"""The element of the explorer's page that gets a link to the start page."""
LOST: Final = "lp1.lqxyb2NrZXRtcS00LjmQlAIBAQKsbG9zdF9ieV9ob2xkzhApc3qWAAIEAQgGiskZ0w"
"""The shortest run in which Java 4.9 loses a wakeup: finding (a)."""
INSTALL: Final = (
    "make setup EXTRAS=spec        # .venv, 200 MB",
    ".venv/bin/longpoll check --policy rocketmq-4.9 --property no_lost_wakeup --explain",
)
"""The first commands, as in the README."""
FIRST: Final[dict[str, dict[str, str]]] = {
    "first-test.md": {"en": "Test your broker in 15 minutes", "zh": "用 15 分钟测试你的 Broker（英文）"},
    "embedding.md": {"en": "Use an embedded broker in pytest", "zh": "在 pytest 中使用内嵌的 Broker（英文）"},
    "lessons/README.md": {
        "en": "Learn how these races work, in lessons of ten minutes",
        "zh": "学习这些竞态：每课十分钟",
    },
}
"""Maps each page where a reader may start to its link texts."""
LANGUAGES: Final = {"en": ("index", ""), "zh": ("zh/index", "../")}
"""Maps each language to its start page, and to the relative path from there to the top of the website."""
WORDS: Final[dict[str, dict[str, str]]] = {
    "title": {"en": "longpoll", "zh": "longpoll：可执行的长轮询规范"},
    "what": {
        "en": "longpoll finds lost wakeups, late answers and dropped requests in message brokers that hold a pull "
        "until a message arrives. It checks running brokers, your own hold table, and an executable specification.",
        "zh": "有些消息系统会挂起拉取，直到消息到来。longpoll 在其中查找丢失的唤醒、迟到的应答和丢弃的请求。"
        "它检查运行中的 Broker、你自己的挂起表，以及一份可执行的规范。",
    },
    "install": {
        "en": "In a checkout, on Linux with Python 3.11 or later:",
        "zh": "在检出的目录里，Linux，Python 3.11 或更高版本：",
    },
    "here": {"en": "Start here", "zh": "从这里开始"},
    "race": {
        "en": "A RocketMQ broker answers a pull at once if there is a message. If not, it *holds* the pull until one "
        "comes. A message that comes between the look and the hold wakes no pull:",
        "zh": "有消息时，RocketMQ 的 Broker 立即应答拉取；没有时，它把拉取*挂起*，直到消息到来。"
        "在查看与挂起之间到来的消息，不会唤醒任何拉取（图中文字为英文）：",
    },
    "find": {
        "en": "Find it by clicks: each button is a possible next step of a thread of RocketMQ 4.9.",
        "zh": "点击按钮，找出这个竞态：每个按钮都是 RocketMQ 4.9 的某个线程可能的下一步。",
    },
    "window": {"en": "Open the explorer in its own window", "zh": "在单独的窗口中打开"},
    "page": {"en": "what the page can do", "zh": "页面能做什么（英文）"},
    "finding": {"en": "the finding", "zh": "这项发现（英文）"},
    "lesson": {"en": "lesson 1", "zh": "第一课"},
    "frame": {
        "en": "The explorer: RocketMQ 4.9, step by step",
        "zh": "探索器：RocketMQ 4.9，一步一步来",
    },
    "on": {"en": "All pages", "zh": "接下来看什么"},
    "other": {"en": "[中文 (Chinese)](zh/index.md)", "zh": "[English](../index.md)"},
    "lessons": {"en": "Lessons", "zh": "课程"},
    "terms": {"en": "Words", "zh": "词汇对照"},
    "rest": {
        "en": "The start page, the explorer and the lessons are also in Chinese.",
        "zh": "首页、探索器和课程有中文；命令、参考与解释只有英文。",
    },
}
"""Maps each text of the start page to its wording in each language."""


def frame(language: str, kind: str = "lp-explorer") -> str:
    """Return the HTML that embeds the explorer in a page of the language."""
    _, top = LANGUAGES[language]
    asked = "" if language == "en" else f"?lang={language}"
    title = WORDS["frame"][language]
    return f'<iframe class="{kind}" src="{top}{EXPLORER}{asked}" title="{title}" loading="lazy"></iframe>'


def pages() -> dict[str, str]:
    """Return a map from path to text, for the start page in each language and for the page with only the explorer."""
    made = {f"{place}.md": _index(language) for language, (place, _) in LANGUAGES.items()}
    return made | {"try-it.md": _try_it()}


def picture(token: str) -> str:
    """Return a drawing of a token's run, with a lane for each thread."""
    return f'<figure class="lp-picture" tabindex="0">{lanes.render(replay(token))}</figure>'


def _evidence() -> list[str]:
    """Return the lines of the README's list of evidence, with adapted links."""
    shown = README.read_text("utf-8").partition("## Evidence\n\n")[2].partition("##")[0]
    return ["**Evidence**", "", *shown.replace("docs/", "").split("\n")]


def _hero() -> str:
    """Return the run of finding (a), step by step, as a narrow and a wide drawing; the style sheet shows one."""
    drawn = {kind: lanes.render(replay(LOST), moving=True, narrow=kind == "narrow") for kind in ("narrow", "wide")}
    return "".join(f'<figure class="lp-hero {kind}">{svg}</figure>' for kind, svg in drawn.items())


def _raw(html: str) -> list[str]:
    return ["```{raw} html", html, "```", ""]


def _index(language: str) -> str:
    _, top = LANGUAGES[language]
    said = {key: words[language] for key, words in WORDS.items()}
    explorer = f"{top}{EXPLORER}{'' if language == 'en' else f'?lang={language}'}"
    lesson = f"{top}lessons/{'' if language == 'en' else f'{language}/'}1-lost-by-hold.md"
    lines = ["---", "hide-toc: true", "---", "", f"# {said['title']}", "", said["other"], "", said["what"], ""]
    lines += [said["install"], "", "```sh", *INSTALL, "```", "", f"**{said['here']}**", ""]
    folder = "lessons/" if language == "en" else f"lessons/{language}/"
    lines += [f"- [{each[language]}]({top}{page.replace('lessons/', folder)})" for page, each in FIRST.items()]
    lines += ["", *(_evidence() if language == "en" else []), said["race"], ""]
    lines += _raw(_hero())
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
    """Return the Markdown list of the sections, and the hidden tree of pages that Sphinx needs on the first page."""
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
            "RocketMQ 4.9, step by step: click steps until something goes wrong, or search for a violation. "
            "[The explorer's page](explorer.md) describes all functions."
        ),
        "",
        *_raw(frame("en", "lp-explorer tall")),
    ]
    return "\n".join(lines)


def write_extras(target: Path) -> None:
    """Write the files that Sphinx copies: the explorer, with a link to the start page."""
    export.main(["--to", "explorer", "--policy", POLICY, str(target / "explorer")], standalone_mode=False)
    page = target / EXPLORER
    text = page.read_text("utf-8")
    assert text.count(HOME) == 1
    page.write_text(text.replace(HOME, f'{HOME}<a href="../index.html" target="_top">longpoll</a>'), encoding="utf-8")
