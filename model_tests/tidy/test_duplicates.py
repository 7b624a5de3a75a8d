"""Nothing of six lines or more is written twice."""

from __future__ import annotations

from model_tests.tidy.duplicates import ROOT, Pair, pairs, sources

BLOCK = "\n".join(f"value_{number} = {number}" for number in range(6))


def test_no_six_lines_are_written_twice() -> None:
    """In the law, the reference and the tests."""
    files = sources(ROOT)

    assert len(files) > 1000
    assert [str(pair) for pair in pairs(files)] == []


def test_a_copy_is_found_and_told_once() -> None:
    """However long it is, also within one file, and wherever blank lines and comments stand in it."""
    longer = f"{BLOCK}\n\n# why\nlast = 1\n"

    assert pairs({"a.py": f"x = 1\n{longer}", "b.py": longer.replace("\n\n", "\n")}) == [Pair("a.py", 2, "b.py", 1, 7)]
    assert pairs({"a.py": f"{BLOCK}\ny = 1\n{BLOCK}\n"}) == [Pair("a.py", 1, "a.py", 8, 6)]
