"""Counts signs of stilted English in the docs, the help texts, the docstrings and the comments.

A count shows where to read, and is not a verdict: text without a marked phrase can still be unclear.

    python -m model_tests.tidy.prose            # the counts, and the files with the most marked phrases
    python -m model_tests.tidy.prose --lower    # write counts that have fallen into prose.json

`test_prose` compares the counts with `prose.json`: they may only fall.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import click
from attrs import define, field

from longpoll.cli import COMMANDS, main

ROOT: Final = Path(__file__).parents[2]
PINNED: Final = Path(__file__).with_name("prose.json")
WORDS_MIN: Final = 5
"""The minimum number of words in a sentence; shorter texts count as headings or table cells."""
WORST: Final = 15
MARKERS: Final[Mapping[str, re.Pattern[str]]] = {
    "a relative clause as subject": re.compile(
        r"^(?:What|Who|Whoever|Those that|Those who|One that|One who)\b(?!.*\?$)"
    ),
    "told, tells of, says so": re.compile(
        r"\b(?:is|are|was|were|be) told\b|\btells? (?:of|what|that|which|how|when|where)\b|"
        r"\bsays? (?:so|what|of|which|how)\b",
        re.IGNORECASE,
    ),
    "nobody, somebody": re.compile(r"\b(?:nobody|somebody|everybody|anybody|whoever)\b", re.IGNORECASE),
    "anew, beside, but for, mend": re.compile(
        r"\b(?:anew|all the same|but for|besides?|by itself|come about|comes? to it|mend(?:s|ed|ing)?|nought|"
        r"otherwise set)\b",
        re.IGNORECASE,
    ),
    "stands in": re.compile(r"\bstands? (?:in|on|at|behind|below|beside|for|there|with|before)\b", re.IGNORECASE),
    ", for it": re.compile(
        r"[,;] for (?:it|they|he|the|a|an|no|there|what|who|that|this|its|each|all|one) ", re.IGNORECASE
    ),
    "is no X": re.compile(r"\b(?:is|are|was) no (?!longer|more|less|message|gap)\w+", re.IGNORECASE),
    "of its own": re.compile(r"\bof (?:its|their|one's|yours|ours|our|the user's) own\b", re.IGNORECASE),
    "has X do": re.compile(
        r"\b(?:has|have|had) (?:the|its|a|an|each|Java|them|it) \w+ (?:do|go|wait|record|sleep|take|look|use|ask|pass|"
        r"throw|end|begin|find|stand|say|tell|read|write|answer|keep)\b"
    ),
}
_FENCE: Final = re.compile(r"^(`{3,}|~{3,})[^\n]*\n.*?^\1[`~]*$", re.MULTILINE | re.DOTALL)
_CODE: Final = re.compile(r"`[^`]*`")
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_END: Final = re.compile(r"(?<=[.?!:])\s+(?=[A-Z0-9\"'(*])")
_ITEM: Final = re.compile(r"^(?:[-*+]|\d+\.)\s+", re.MULTILINE)
_COMMENT: Final = re.compile(r"(?:^[ ]*|\S  )# (.*)$", re.MULTILINE)
_FOR_TOOLS: Final = re.compile(r"noqa|type: ignore|--|fmt:|pragma")
_DOCSTRING: Final = re.compile(r'^[ ]*(?:r)?"""(.*?)"""', re.MULTILINE | re.DOTALL)


@define
class Count:
    words: int = 0
    sentences: int = 0
    marked: dict[str, int] = field(factory=dict)

    def add(self, sentence: str) -> None:
        words = len(sentence.split())
        self.words += words
        self.sentences += 1
        for name, pattern in MARKERS.items():
            if hits := len(pattern.findall(sentence)):
                self.marked[name] = self.marked.get(name, 0) + hits

    def rates(self) -> dict[str, float]:
        return {"marked": round(1_000 * sum(self.marked.values()) / max(self.words, 1), 1)}


def sentences(text: str) -> Iterator[str]:
    text = _CODE.sub("X", _LINK.sub(r"\1", text))
    for part in _END.split(" ".join(text.split())):
        if len(part.split()) >= WORDS_MIN:
            yield part


def of_markdown(text: str) -> Iterator[str]:
    """Yield the sentences of a page, without its code."""
    for block in re.split(r"\n\s*\n", _FENCE.sub("\n", text)):
        for item in re.split(r"\n(?=[-*+] |\d+\. |\||#|<)", block):
            if item.startswith("|"):
                prose = item.strip("|\n ").split("|")
            elif item.startswith(("#", "<")):
                prose = [item.partition("\n")[2]]
            else:
                prose = [_ITEM.sub("", item)]
            for part in prose:
                yield from sentences(part)


def of_python(text: str) -> Iterator[str]:
    """Yield the sentences of a module's docstrings; indented examples are left out."""
    for found in _DOCSTRING.findall(text):
        lines = [line for line in found.splitlines() if not line.lstrip().startswith(("|", ">>>"))]
        for block in re.split(r"\n\s*\n", "\n".join(lines)):
            yield from sentences(block)


def of_comments(text: str) -> Iterator[str]:
    """Yield the sentences of a module's comments, without comments for tools and section lines."""
    for block in re.split(r"\n(?![ ]*#)", text):
        lines = _COMMENT.findall(block)
        yield from sentences(" ".join(line for line in lines if not _FOR_TOOLS.match(line)))


def tracked(*patterns: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def _helped(command: click.Command) -> Iterator[str]:
    context = click.Context(command)
    for block in re.split(r"\n\s*\n", command.help or ""):
        if not block.lstrip().startswith("\b"):
            yield from sentences(block)
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record:
            yield from sentences(record[1])
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                yield from _helped(below)


def _of_help() -> dict[str, list[str]]:
    found = {name: main.get_command(click.Context(main), name) for name in COMMANDS}
    return {f"longpoll {name} --help": list(_helped(command)) for name, command in found.items() if command}


def _read(names: list[str], read: Callable[[str], Iterator[str]]) -> dict[str, list[str]]:
    return {name: list(read((ROOT / name).read_text("utf-8"))) for name in names}


def texts() -> dict[str, dict[str, list[str]]]:
    docs = [name for name in tracked("docs/*.md") if "/zh/" not in name]
    return {
        "readme": _read(tracked("README.md", "CONTRIBUTING.md"), of_markdown),
        "docs": _read(docs, of_markdown),
        "help": _of_help(),
        "docstrings": _read(tracked("spec/*.py", "reference/*.py"), of_python),
        "docstrings of tests": _read(tracked("model_tests/*.py"), of_python),
        "comments": _read(tracked("spec/*.py", "reference/*.py"), of_comments),
        "comments of tests": _read(tracked("model_tests/*.py"), of_comments),
    }


def counted(all_sentences: Iterator[str] | list[str]) -> Count:
    count = Count()
    for sentence in all_sentences:
        count.add(sentence)
    return count


def measured() -> dict[str, dict[str, float]]:
    return {
        group: counted([each for read in files.values() for each in read]).rates() for group, files in texts().items()
    }


def pinned() -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = json.loads(PINNED.read_text("utf-8"))
    return found


def grown(found: Mapping[str, Mapping[str, float]], allowed: Mapping[str, Mapping[str, float]]) -> list[str]:
    return [
        f"{group}: {name} {number} of at most {allowed[group][name]}; python -m model_tests.tidy.prose lists the files"
        for group, numbers in found.items()
        for name, number in numbers.items()
        if number > allowed[group][name]
    ]


def command() -> int:
    found, allowed = measured(), pinned()
    if sys.argv[1:] == ["--lower"]:
        least = {
            group: {name: min(number, allowed[group][name]) for name, number in numbers.items()}
            for group, numbers in found.items()
        }
        PINNED.write_text(json.dumps(least, indent=2) + "\n", encoding="utf-8")
    elif sys.argv[1:]:
        sys.stderr.write("the only option is --lower\n")
        return 2
    for group, numbers in found.items():
        sys.stdout.write(f"{group:20} {numbers}\n")
    worst = []
    for files in texts().values():
        for name, read in files.items():
            count = counted(read)
            if count.words >= 150:
                worst.append(
                    (count.rates()["marked"], name, max(count.marked, key=count.marked.__getitem__, default=""))
                )
    for rate, name, most in sorted(worst, reverse=True)[:WORST]:
        sys.stdout.write(f"{rate:6.1f}  {name}  (most: {most})\n")
    return 0


if __name__ == "__main__":
    sys.exit(command())
