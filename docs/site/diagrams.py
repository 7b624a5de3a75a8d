"""The mermaid blocks of the docs as SVG: state diagrams, flowcharts and sequence diagrams, as far as the docs use them.

A line that is not understood is an error, so that no arrow is left out without a word. Leaves out the rest of mermaid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from attrs import frozen

from longpoll_spec.render.pictures import svg
from longpoll_spec.render.pictures.graph import Edge, render
from longpoll_spec.render.pictures.svg import width_of

_STATE: Final = re.compile(r"(\S+) --> ([^\s:]+)(?:: (.*))?")
_NODE: Final = re.compile(r"([\w-]+)(?:\[\(([^)]*)\)\]|\[\"?([^\]\"]*)\"?\])?")
_ARROW: Final = re.compile(
    r" (?:-- (?P<solid>.+?) -->|-->\|(?P<short>[^|]*)\||-\. (?P<dashed>.+?) \.->|(?P<plain>-\.->|-->)) "
)
_PARTICIPANT: Final = re.compile(r"participant (\w+) as (.*)")
_MESSAGE: Final = re.compile(r"(\w+)(--?>>)(\w+): (.*)")


class DiagramError(Exception):
    """A line of a diagram that is not understood; the text has it."""


def drawn(source: str) -> str:
    """A mermaid block as one `<svg>` element; raises DiagramError."""
    head, *lines = [line.strip() for line in source.strip().splitlines()]
    kinds: Mapping[str, Callable[[Sequence[str]], str]] = {
        "stateDiagram-v2": _state_diagram,
        "flowchart LR": _flowchart,
        "sequenceDiagram": _sequence,
    }
    if head not in kinds:
        raise DiagramError(f"no diagram begins with {head!r} here")
    return kinds[head]([line for line in lines if line and not line.startswith("%%")])


def _state_diagram(lines: Sequence[str]) -> str:
    edges = []
    for line in lines:
        found = _STATE.fullmatch(line)
        if found is None:
            raise DiagramError(f"no move: {line!r}")
        edges.append(Edge(found[1], "[end]" if found[2] == "[*]" else found[2], found[3] or ""))
    keys = dict.fromkeys(end for edge in edges for end in (edge.source, edge.target))
    names = {key: key.replace("_", " ") for key in keys}
    return render(names, edges, title="A state diagram", dots=frozenset({"[*]", "[end]"} & set(keys)))


def _flowchart(lines: Sequence[str]) -> str:
    names: dict[str, str] = {}
    edges: list[Edge] = []
    for line in lines:
        if line == "end":
            continue
        if line.startswith("subgraph "):
            continue
        edges += chain(line, names)
    return render(names, edges, title="A flowchart")


def chain(line: str, names: dict[str, str]) -> Iterator[Edge]:
    """The arrows of one line, which may go on from node to node; the nodes get their names."""
    place, before = 0, None
    words, dashed = "", False
    while True:
        node = _NODE.match(line, place)
        if node is None:
            raise DiagramError(f"no node at {line[place:]!r} of {line!r}")
        name = node[2] or node[3]
        if name is not None or node[1] not in names:
            names[node[1]] = name or node[1]
        if before is not None:
            yield Edge(before, node[1], words, dashed)
        if node.end() == len(line):
            return
        arrow = _ARROW.match(line, node.end())
        if arrow is None:
            raise DiagramError(f"no arrow at {line[node.end() :]!r} of {line!r}")
        words = arrow["solid"] or arrow["short"] or arrow["dashed"] or ""
        dashed = arrow["dashed"] is not None or arrow["plain"] == "-.->"
        before, place = node[1], arrow.end()


@frozen
class _Message:
    source: int
    target: int
    words: str
    dashed: bool


SIZE: Final = 13.0
HEAD: Final = 30
ROW: Final = 40
PAD: Final = 14.0
SEQUENCE_STYLE: Final = svg.style_of(
    "lp-sequence",
    f"""
.box{{fill:var(--head);stroke:var(--edge)}}
.life{{stroke:var(--edge);stroke-dasharray:3 4}}
.edge{{stroke:var(--edge);stroke-width:1.4}}
.dashed{{stroke-dasharray:5 4}}
.tip{{fill:var(--edge)}}
text{{fill:var(--ink);font-size:{SIZE}px;text-anchor:middle}}
.words{{fill:var(--dim)}}
""",
)


def _sequence(lines: Sequence[str]) -> str:
    names: dict[str, str] = {}
    messages: list[_Message] = []
    for line in lines:
        if found := _PARTICIPANT.fullmatch(line):
            names[found[1]] = found[2]
        elif (found := _MESSAGE.fullmatch(line)) and {found[1], found[3]} <= set(names):
            keys = list(names)
            messages.append(_Message(keys.index(found[1]), keys.index(found[3]), found[4], found[2] == "-->>"))
        else:
            raise DiagramError(f"no participant or message: {line!r}")
    return _sequence_drawn(list(names.values()), messages)


def _columns(names: Sequence[str], messages: Sequence[_Message]) -> list[float]:
    """Where each participant's line stands: what is said between two has room there."""
    at = [PAD + width_of(names[0], SIZE) / 2 + PAD]
    for number, name in enumerate(names[1:], start=1):
        apart = (width_of(names[number - 1], SIZE) + width_of(name, SIZE)) / 2 + 3 * PAD
        least = at[-1] + apart
        for message in messages:
            low, high = sorted((message.source, message.target))
            if high == number:
                least = max(least, at[low] + width_of(message.words, SIZE) + 2 * PAD)
        at.append(least)
    return at


def _sequence_drawn(names: Sequence[str], messages: Sequence[_Message]) -> str:
    at = _columns(names, messages)
    width = at[-1] + width_of(names[-1], SIZE) / 2 + 2 * PAD
    bottom = HEAD + PAD + ROW * len(messages) + PAD
    parts = []
    for name, x in zip(names, at, strict=True):
        half = width_of(name, SIZE) / 2 + PAD / 2
        parts.append(svg.line("life", x, HEAD, x, bottom))
        parts.append(svg.element("rect", "box", x=x - half, y=2, width=2 * half, height=HEAD, rx=7))
        parts.append(svg.text("name", x, 22, name))
    for number, message in enumerate(messages):
        y = HEAD + PAD + ROW * number + 28
        start, end = at[message.source], at[message.target]
        towards = 1 if end > start else -1
        parts.append(svg.line("edge dashed" if message.dashed else "edge", start, y, end - 8 * towards, y))
        parts.append(svg.tip(end, y, (-9 * towards, 0), 4))
        parts.append(svg.text("words", (start + end) / 2, y - 6, message.words))
    return svg.picture("lp-sequence", (width, bottom), "A sequence diagram", SEQUENCE_STYLE, parts)
