"""Draw a directed graph as SVG: nodes in layers from top to bottom, with reserved space for each arrow's label.

Arrows that would close a cycle run upwards. A label takes part in the layout like a node, so it overlaps nothing. Used
by the diagrams of the docs and by `phases`, which draws the phases of a request as a state machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from attrs import define, field, frozen

from longpoll_spec.phase_changes import PhaseChange
from longpoll_spec.render.pictures.svg import element, picture, style_of, text, tip, width_of, wrapped

SIZE: Final = 13.0
"""Font size of nodes."""
SMALL: Final = 11.5
"""Font size of labels and notes."""
WORDS_MAX: Final = 150.0
"""The width at which labels wrap."""
LINE: Final = 16.0
GAP: Final = 18.0
"""Space between two neighbours of a layer."""
BETWEEN: Final = 22.0
"""Space between two layers."""
EDGE: Final = 10.0
SWEEPS: Final = 12
"""Rounds of sorting neighbours and pulling them towards those above and below."""
STYLE: Final = style_of(
    "lp-graph",
    f"""
.box{{fill:var(--head);stroke:var(--edge)}}
.dot{{fill:var(--ink)}}
.edge{{fill:none;stroke:var(--edge);stroke-width:1.4}}
.dashed{{stroke-dasharray:5 4}}
.tip{{fill:var(--edge)}}
text{{fill:var(--ink);font-size:{SIZE}px;text-anchor:middle}}
.words{{fill:var(--dim);font-size:{SMALL}px}}
""",
)


@frozen
class Edge:
    """An arrow from one node to another."""

    source: str
    target: str
    words: str = ""
    dashed: bool = False


@define
class _Item:
    """An item of a layer: a node, the label of an arrow, or a bend of one."""

    lines: Sequence[str]
    size: float
    width: float
    height: float
    layer: int = 0
    x: float = 0.0
    y: float = 0.0
    above: list[_Item] = field(factory=list, repr=False)
    below: list[_Item] = field(factory=list, repr=False)


def render(names: Mapping[str, str], edges: Sequence[Edge], *, title: str, dots: frozenset[str] = frozenset()) -> str:
    """The graph as one `<svg>` element. `names`: key -> text of its node; those of `dots` are drawn as a dot."""
    nodes = {key: _dot() if key in dots else _node(name) for key, name in names.items()}
    upward = _layers(nodes, edges)
    drawn = [(edge, _way(nodes, edge, upwards=edge in upward)) for edge in edges]
    layers = _ordered([*nodes.values(), *(item for _, way in drawn for item in way[1:-1])])
    _place(layers)
    width = max(item.x + item.width / 2 for layer in layers for item in layer) + EDGE
    height = max(item.y + item.height / 2 for layer in layers for item in layer) + EDGE
    parts = [part for edge, way in drawn for part in _arrow(edge, way)]
    parts += [_drawn(item, dot=key in dots) for key, item in nodes.items()]
    return picture("lp-graph", (width, height), title, STYLE, parts)


def _node(name: str) -> _Item:
    lines = wrapped(name, WORDS_MAX, SIZE)
    return _Item(lines, SIZE, max(width_of(line, SIZE) for line in lines) + 22, len(lines) * LINE + 14)


def _dot() -> _Item:
    return _Item((), SIZE, 12, 12)


def _words(text: str) -> _Item:
    lines = wrapped(text, WORDS_MAX, SMALL)
    return _Item(lines, SMALL, max((width_of(line, SMALL) for line in lines), default=2) + 6, len(lines) * LINE + 2)


def _layers(nodes: Mapping[str, _Item], edges: Sequence[Edge]) -> set[Edge]:
    """Assign layers to nodes; returns the arrows that run upwards. Every second layer is left for labels."""
    targets = {key: [edge for edge in edges if edge.source == key] for key in nodes}
    upward: set[Edge] = set()
    state: dict[str, int] = {}
    done: list[str] = []

    def visit(key: str) -> None:
        state[key] = 1
        for edge in targets[key]:
            if state.get(edge.target) == 1:
                upward.add(edge)
            elif edge.target not in state:
                visit(edge.target)
        state[key] = 2
        done.append(key)

    for key in nodes:
        if key not in state:
            visit(key)
    for key in reversed(done):
        for edge in targets[key]:
            if edge not in upward:
                nodes[edge.target].layer = max(nodes[edge.target].layer, nodes[key].layer + 2)
    return upward


def _way(nodes: Mapping[str, _Item], edge: Edge, *, upwards: bool) -> list[_Item]:
    """The items that an arrow passes, from its start to its end; the label is next to the upper node."""
    first, last = nodes[edge.source], nodes[edge.target]
    top, bottom = (last, first) if upwards else (first, last)
    way = [top]
    for layer in range(top.layer + 1, max(bottom.layer, top.layer + 2)):
        item = _words(edge.words if layer == top.layer + 1 else "")
        item.layer = layer
        way.append(item)
    way.append(bottom)
    for upper, lower in itertools.pairwise(way):
        if upper is not lower:
            upper.below.append(lower)
            lower.above.append(upper)
    return way[::-1] if upwards else way


def _ordered(items: Iterable[_Item]) -> list[list[_Item]]:
    """The layers, each in an order with few crossings."""
    layers: dict[int, list[_Item]] = {}
    for item in items:
        layers.setdefault(item.layer, []).append(item)
    rows = [layers[number] for number in sorted(layers)]
    for sweep in range(SWEEPS):
        downwards = sweep % 2 == 0
        for row in rows if downwards else rows[::-1]:
            for number, item in enumerate(row):
                near = item.above if downwards else item.below
                item.x = sum(other.x for other in near) / len(near) if near else float(number)
            row.sort(key=lambda item: item.x)
            for number, item in enumerate(row):
                item.x = float(number)
    return rows


def _place(rows: Sequence[Sequence[_Item]]) -> None:
    y = EDGE
    for row in rows:
        height = max(item.height for item in row)
        x = 0.0
        for item in row:
            item.x, item.y = x + item.width / 2, y + height / 2
            x += item.width + GAP
        y += height + BETWEEN
    for sweep in range(SWEEPS * 2):
        for row in rows if sweep % 2 == 0 else rows[::-1]:
            _pull(row)
    left = min(item.x - item.width / 2 for row in rows for item in row) - EDGE
    for row in rows:
        for item in row:
            item.x -= left


def _pull(row: Sequence[_Item]) -> None:
    """Move a layer's items towards their neighbours above and below, as far as there is room."""
    wanted = [_wanted(item) for item in row]
    blocks: list[tuple[list[_Item], float]] = []
    for item, aim in zip(row, wanted, strict=True):
        blocks.append(([item], aim))
        while len(blocks) > 1 and _start(*blocks[-1]) < _start(*blocks[-2]) + _span(blocks[-2][0]) + GAP:
            (right, right_aim), (left, left_aim) = blocks.pop(), blocks.pop()
            offset = _span(left) / 2 - _span([*left, *right]) / 2
            other = _span([*left, *right]) / 2 - _span(right) / 2
            both = len(left) + len(right)
            middle = ((left_aim - offset) * len(left) + (right_aim - other) * len(right)) / both
            blocks.append(([*left, *right], middle))
    for items, middle in blocks:
        x = _start(items, middle)
        for item in items:
            item.x = x + item.width / 2
            x += item.width + GAP


def _wanted(item: _Item) -> float:
    near = [*item.above, *item.below]
    return sum(other.x for other in near) / len(near) if near else item.x


def _span(items: Sequence[_Item]) -> float:
    return sum(item.width for item in items) + GAP * (len(items) - 1)


def _start(items: Sequence[_Item], aim: float) -> float:
    return aim - _span(items) / 2


def _arrow(edge: Edge, way: Sequence[_Item]) -> Iterator[str]:
    first, last = way[0], way[-1]
    down = first.y < last.y
    points = [(first.x, first.y + (first.height / 2 if down else -first.height / 2))]
    points += [(item.x, item.y + end * item.height / 2) for item in way[1:-1] for end in ((-1, 1) if down else (1, -1))]
    points.append((last.x, last.y + (-last.height / 2 - 6 if down else last.height / 2 + 6)))
    kind = "edge dashed" if edge.dashed else "edge"
    for piece in _lines(points, way, edge):
        yield element("path", kind, d=piece)
    x, y = points[-1]
    yield tip(x, y + 6, (0, -8), 4) if down else tip(x, y - 6, (0, 8), 4)
    for item in way[1:-1]:
        yield from _text("words", item)


def _lines(points: Sequence[tuple[float, float]], way: Sequence[_Item], edge: Edge) -> Iterator[str]:
    written = [bool(item.lines) for item in way[1:-1]]
    for number in range(len(points) - 1):
        inside, (x1, y1), (x2, y2) = number % 2 == 1, points[number], points[number + 1]
        if inside and number // 2 < len(written) and written[number // 2]:
            assert edge.words
            continue
        middle = (y1 + y2) / 2
        yield f"M{x1:.1f} {y1:.1f}C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}"


def _drawn(item: _Item, *, dot: bool) -> str:
    if dot:
        return element("circle", "dot", cx=item.x, cy=item.y, r=6)
    left, top = item.x - item.width / 2, item.y - item.height / 2
    box = element("rect", "box", x=left, y=top, width=item.width, height=item.height, rx=7)
    return box + "".join(_text("node", item))


def _text(kind: str, item: _Item) -> Iterator[str]:
    top = item.y - (len(item.lines) - 1) * LINE / 2 + item.size * 0.36
    for number, line in enumerate(item.lines):
        yield text(kind, item.x, top + number * LINE, line)


START: Final = "[*]"
FIRST: Final = "idle"
"""The first phase of every request."""


def phases(moves: Iterable[PhaseChange], title: str) -> str:
    """The moves as one `<svg>` element: an arrow from one phase to another, labelled with its actions."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for move in moves:
        arrows.setdefault((move.before, move.after), []).append(move.action)
    edges = [Edge(START, FIRST)]
    edges += [Edge(before, after, ", ".join(dict.fromkeys(found))) for (before, after), found in arrows.items()]
    names = dict.fromkeys([START, FIRST, *(end for pair in arrows for end in pair)], "")
    return render({key: key.replace("_", " ") for key in names}, edges, title=title, dots=frozenset({START}))
