"""Pictures of runs and of graphs: every step is drawn, and no text runs over an edge, a box or another text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

import pytest
from attrs import frozen
from click.testing import CliRunner

from longpoll.cli import main
from longpoll_spec.engines.tokens import replay
from longpoll_spec.moves import moves_of
from longpoll_spec.policy import PRESETS, preset
from longpoll_spec.render.pictures import graph, lanes, plot, svg
from longpoll_spec.render.pictures.letters import width_of, wrapped
from longpoll_spec.render.pictures.phases import phases
from longpoll_spec.render.spec_actions import model_of
from longpoll_spec.render.story.story import story_of

SPACE: Final = "{http://www.w3.org/2000/svg}"
FINDINGS: Final = Path(__file__).parents[2] / "docs" / "findings.md"
TOKENS: Final = re.findall(r"^longpoll explain (\S+)$", FINDINGS.read_text("utf-8"), re.MULTILINE)
SIZES: Final = {
    "lp-lanes": ({"java": lanes.SMALL, "inside": lanes.SMALL, "tick": lanes.SMALL, "number": lanes.SMALL}, lanes.SIZE),
    "lp-chart": ({"java": svg.SMALL, "change": svg.SMALL, "number": svg.SMALL}, svg.SIZE),
    "lp-graph": ({"words": graph.SMALL}, graph.SIZE),
    "lp-plot": ({"small": plot.SMALL}, plot.SIZE),
}
"""Picture -> the sizes of its letters by class, and of all others."""
BOLD: Final = {("lp-lanes", "number"), ("lp-chart", "name"), ("lp-plot", "head")}
MIDDLE: Final = {
    ("lp-lanes", "number"),
    ("lp-lanes", "middle"),
    ("lp-chart", "name"),
    ("lp-chart", "java"),
    ("lp-plot", "middle"),
}
END: Final = {("lp-plot", "end")}


@frozen
class Written:
    """Where a text stands."""

    text: str
    left: float
    right: float
    top: float
    bottom: float

    def meets(self, other: Written) -> bool:
        """Whether the two lie on each other."""
        apart = self.right <= other.left or other.right <= self.left
        return not apart and not (self.bottom <= other.top or other.bottom <= self.top)


def written(root: ET.Element, x: float = 0.0, y: float = 0.0) -> list[Written]:
    """Every text of a picture, with groups that are moved."""
    kind = root.get("class", "")
    return _written(root, kind, x, y)


def _written(element: ET.Element, kind: str, x: float, y: float) -> list[Written]:
    moved = re.fullmatch(r"translate\(([\d.]+) ([\d.]+)\)", element.get("transform", ""))
    if moved:
        x, y = x + float(moved[1]), y + float(moved[2])
    if element.tag == f"{SPACE}text":
        return [_placed(element, kind, x, y)]
    return [each for child in element for each in _written(child, kind, x, y)]


def _placed(element: ET.Element, kind: str, x: float, y: float) -> Written:
    sizes, other = SIZES[kind]
    classes = element.get("class", "").split()
    size = next((sizes[each] for each in classes if each in sizes), other)
    text = element.text or ""
    width = width_of(text, size, bold=any((kind, each) in BOLD for each in classes))
    middle = kind == "lp-graph" or any((kind, each) in MIDDLE for each in classes)
    end = any((kind, each) in END for each in classes)
    left = x + float(element.get("x", "0")) - (width / 2 if middle else width if end else 0)
    base = y + float(element.get("y", "0"))
    return Written(text, left, left + width, base - 0.75 * size, base + 0.2 * size)


def wrong(picture: str) -> list[str]:
    """What runs over the sheet, over the box that it stands in, or over another text."""
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
    """Whether the text's middle is in the box and its end is not."""
    x, y = (text.left + text.right) / 2, (text.top + text.bottom) / 2
    inside = box.left < x < box.right and box.top < y < box.bottom
    return inside and (text.left < box.left or text.right > box.right)


@pytest.mark.parametrize("token", TOKENS)
def test_every_finding_is_drawn(token: str) -> None:
    """With a numbered mark and words for each step, what is wrong, and nothing cut off; both ways to draw it."""
    trace = replay(token)
    story = story_of(trace)
    picture = lanes.render(trace)
    root = ET.fromstring(picture)  # noqa: S314 - it is our own text
    marks = [each.text for each in root.iter(f"{SPACE}text") if each.get("class") == "number"]

    assert marks == [str(scene.number) for scene in story.scenes]
    assert story.wrong[0].split()[0] in picture
    assert wrong(picture) == []
    assert wrong(svg.render(story)) == []
    assert "prefers-color-scheme:dark" in picture


def test_every_finding_of_the_page_has_a_token() -> None:
    """From (a) to (p), but for the letters that no finding has."""
    sections = re.split(r"^## ", FINDINGS.read_text("utf-8"), flags=re.MULTILINE)[1:]
    letters = {
        letter for text in sections if "longpoll explain" in text for letter in re.findall(r"\((\w)\)", text[:20])
    }

    assert letters == set("abcdeghijlmop")
    assert len(TOKENS) >= 19


def test_a_moving_picture_has_the_same_steps() -> None:
    """Each comes in its turn, and a reader who asked for less motion sees all at once."""
    trace = replay(TOKENS[0])
    moving = lanes.render(trace, moving=True)

    assert [f"@keyframes lp-step-{number}{{" in moving for number in range(1, 8)] == [True] * 6 + [False]
    assert "@media (prefers-reduced-motion:no-preference)" in moving
    assert wrong(moving) == []


@pytest.mark.parametrize("name", PRESETS)
def test_the_phases_are_drawn_from_the_law(name: str) -> None:
    """Each phase and each action that moves a request, no text on another."""
    moves = moves_of(model_of(preset(name)))
    picture = phases(moves, name)
    shown = {text.text for text in written(ET.fromstring(picture))}  # noqa: S314 - it is our own text

    assert {end.replace("_", " ") for move in moves for end in (move.before, move.after)} <= shown
    assert all(any(move.action in text for text in shown) for move in moves)
    assert wrong(picture) == []


def test_a_text_is_broken_where_it_must_be() -> None:
    """Between words, and within a word that is too long; nothing is lost."""
    lines = wrapped("a bucket and aVeryLongNameOfSomeMethodThatHasNoSpaces", 80, 13)

    assert all(width_of(line, 13) <= 80 for line in lines)
    assert "".join(lines).replace(" ", "") == "abucketandaVeryLongNameOfSomeMethodThatHasNoSpaces"
    assert width_of("i", 10) < width_of("W", 10) < width_of("W", 10, bold=True)


def test_explain_writes_a_picture(tmp_path: Path) -> None:
    """`--format svg` is the picture of the run."""
    told = CliRunner().invoke(main, ["explain", TOKENS[0], "--format", "svg", "--output", str(tmp_path / "race.svg")])

    assert told.exit_code == 0, told.output
    assert (tmp_path / "race.svg").read_text() == lanes.render(replay(TOKENS[0])) + "\n"
