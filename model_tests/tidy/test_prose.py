"""Signs of stilted English in docs, help and docstrings may only become fewer."""

from __future__ import annotations

import pytest
from model_tests.tidy import prose

STILTED = {
    "a relative clause as subject": "What is no request is answered with an error.",
    "told, tells of, says so": "The broker tells of each of its queues.",
    "nobody, somebody": "There is a queue that nobody reads.",
    "anew, beside, but for, mend": "The client makes all of it anew.",
    "stands in": "The result stands on the first line.",
    ", for it": "The file is empty, for the disk is full.",
    "is no X": "This file is no history at all.",
    "of its own": "Each test has a broker of its own.",
    "has X do": "The call has the broker wait for it.",
}
PLAIN = "The broker returns an error for each malformed frame, and keeps the connection open."


def test_no_count_grows() -> None:
    found, allowed = prose.measured(), prose.pinned()

    assert {group: set(numbers) for group, numbers in found.items()} == {
        group: set(numbers) for group, numbers in allowed.items()
    }
    assert prose.grown(found, allowed) == []


@pytest.mark.parametrize("name", STILTED)
def test_each_marked_phrase_is_counted(name: str) -> None:
    assert name in prose.counted([STILTED[name]]).marked
    assert prose.counted([PLAIN]).marked == {}


def test_every_marker_has_an_example() -> None:
    assert set(STILTED) == set(prose.MARKERS)


def test_prose_is_read_and_code_is_not() -> None:
    page = (
        f"# Nobody knows what this heading says\n\n{PLAIN}\n\n```sh\nnobody reads this line of code\n```\n\n- {PLAIN}\n"
    )
    module = f'"""{PLAIN}"""\nx = "nobody reads this string at all"\n\n\ndef f():\n    """{PLAIN}"""\n'

    assert list(prose.of_markdown(page)) == [PLAIN, PLAIN]
    assert list(prose.of_python(module)) == [PLAIN, PLAIN]
