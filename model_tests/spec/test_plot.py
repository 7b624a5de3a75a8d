"""Plots of measured figures: every figure has its place, no text is cut off, and odd figures are refused."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from docs.site import figures
from model_tests.spec.test_pictures import SPACE, wrong

from longpoll_spec.errors import UserError
from longpoll_spec.render.pictures.plot import SERIES_MAX, Bars, Line, bars, lines, shares

PAGE = (Path(__file__).parents[2] / "docs" / "polling.md").read_text("utf-8")


def drawn(*series: Line) -> str:
    """Lines with axes."""
    return lines(series, title="A plot", across="ms", up="messages")


def test_a_share_goes_up_by_one_part_at_each_value() -> None:
    """From nothing before the least to all at the largest, in their order."""
    assert shares("a", [4.0, 1.0]).points == ((1.0, 0.0), (1.0, 0.0), (1.0, 0.5), (4.0, 0.5), (4.0, 1.0))
    with pytest.raises(UserError, match="a has no figures; measure first"):
        shares("a", [])


def test_a_point_stands_where_its_figure_says() -> None:
    """Of an axis from 1 to 100, 10 is in the middle; what is twice as much of the messages is twice as high."""
    picture = drawn(Line("a", ((1.0, 0.0), (10.0, 0.5), (100.0, 1.0))))
    path = re.search(r'class="curve s0" d="M([^"]*)"', picture)
    assert path is not None
    points = [tuple(map(float, point.split())) for point in path[1].split("L")]

    assert points[1][0] == pytest.approx((points[0][0] + points[2][0]) / 2, abs=0.1)
    assert points[1][1] == pytest.approx((points[0][1] + points[2][1]) / 2, abs=0.1)
    assert points[0][1] > points[2][1]


def test_a_bar_is_as_long_as_its_figure() -> None:
    """Beside the longest of its group, and none for nothing; the figure stands beside it."""
    picture = bars([Bars("head", (("a", 400.0), ("b", 100.0), ("c", 0.0)))], title="Bars")
    root = ET.fromstring(picture)  # noqa: S314 - it is our own text
    widths = [float(each.attrib["width"]) for each in root.iter(f"{SPACE}rect")]
    words = [each.text for each in root.iter(f"{SPACE}text")]

    assert widths[1] == pytest.approx(widths[0] / 4, abs=0.1)
    assert widths[2] == 0.0
    assert words == ["head", "a", "400", "b", "100", "c", "0.0"]


@pytest.mark.parametrize("name", ["a", "<b>&", "wide" * 60, " ".join(["several", "words"] * 30)])
def test_no_name_is_cut_off(name: str) -> None:
    """However long, and whatever it is made of; as many series as there may be."""
    many = [shares(f"{name} {number}", [0.001, 9.0, 12_345.0]) for number in range(SERIES_MAX)]

    assert wrong(drawn(*many)) == []
    assert wrong(bars([Bars(name, tuple((each.name, 1e9) for each in many))], title=name)) == []


@pytest.mark.parametrize("x", [0.0, -1.0, math.inf, math.nan, 1e300])
def test_a_figure_without_a_place_is_refused(x: float) -> None:
    """No logarithm, or an axis that nobody could read."""
    with pytest.raises(UserError, match=r"has no place|powers of ten"):
        drawn(Line("a", ((1.0, 0.0), (x, 1.0))))


@pytest.mark.parametrize("figure", [-1.0, math.inf, math.nan])
def test_a_bar_without_a_length_is_refused(figure: float) -> None:
    """Below nothing or without end; and a group without bars."""
    with pytest.raises(UserError, match="no bar is"):
        bars([Bars("head", (("a", figure),))], title="Bars")
    with pytest.raises(UserError, match="groups of 1 to"):
        bars([Bars("head", ())], title="Bars")


def test_too_many_series_are_refused() -> None:
    """There are only so many colours; and none at all is no picture."""
    with pytest.raises(UserError, match="7 series; give 1 to 6"):
        drawn(*[shares("a", [1.0])] * 7)
    with pytest.raises(UserError, match="0 series"):
        drawn()


def test_the_page_has_what_was_measured() -> None:
    """Its table, its machine and its pictures are those of the file of figures, and nothing in them is cut off."""
    found = figures.measured()

    assert figures.table(found) in PAGE
    assert figures.machine(found) in PAGE
    for name, picture in figures.pictures(found).items():
        assert (figures.FIGURES / name).read_text("utf-8") == picture + "\n", "python -m docs.site.figures"
        assert f"](figures/{name})" in PAGE
        assert wrong(picture) == []
        assert "prefers-color-scheme:dark" in picture


def test_a_file_of_other_figures_is_refused(tmp_path: Path) -> None:
    """None, one that is no JSON, one without latencies: each with the way to make it anew."""
    path = tmp_path / "polling.json"
    for text in (None, "no", "{}", json.dumps({"results": []}), json.dumps({"results": [{"way": "a"}]})):
        if text is not None:
            path.write_text(text)
        with pytest.raises(UserError, match="no figures of polling_bench; write it anew"):
            figures.measured(path)
