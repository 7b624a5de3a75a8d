"""The text of a file of accounts: what is read of it, how it is written again, and where it stops being YAML."""

from __future__ import annotations

import pytest

from longpoll_broker.service.access.account_file import AccountFile
from longpoll_spec.errors import ConfigError


def written(text: str) -> str:
    """A file read and written again."""
    return AccountFile.parse(text.encode()).text().decode()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: ä\n", "a: ä\n"),
        ("a: ~\nb: [~, c]\n", "a: null\nb:\n- null\n- c\n"),
        ("a: {b: 'c', d: \"e\"}\n", "a:\n  b: c\n  d: e\n"),
        ('a: "ä\\x85"\n', 'a: "\\xE4\\N"\n'),
        ('a: "ä\\u2028"\n', 'a: "\\xE4\\L"\n'),
        ('a: "ä\\u2029"\n', 'a: "\\xE4\\P"\n'),
    ],
)
def test_a_file_is_written_as_java_writes_it(text: str, words: str) -> None:
    """One value a line, nulls as a word, letters as they are unless a mark among them would end a line."""
    assert written(text) == words
    assert written(words) == words


def test_a_list_that_is_in_itself_is_written_as_it_is() -> None:
    """Not without end."""
    assert written("a: &a [*a]\n") == "a: &id001\n- *id001\n"
    assert written("a: &a {b: c}\nd: *a\n") == "a: &id001\n  b: c\nd: *id001\n"


@pytest.mark.parametrize("is_admin", [True, False])
def test_an_administrator_is_written_as_one(is_admin: bool) -> None:
    """And nobody else."""
    file = AccountFile.parse(b"")
    file.put_account("newcomer", {"admin": is_admin})
    assert file.text().decode() == f"accounts:\n- accessKey: newcomer\n  admin: {str(is_admin).lower()}\n"


def test_what_is_null_is_left_out() -> None:
    """In tables and in lists."""
    assert AccountFile.parse(b"a: [~, b, null]\nc: ~\nd: {e: ~, f: 'null'}\n").values() == {
        "a": ["b"],
        "d": {"f": "null"},
    }


def test_a_key_that_is_no_text_is_told_of() -> None:
    """It would be nothing that anybody asks for."""
    with pytest.raises(ConfigError, match="a key in it is not text"):
        AccountFile.parse(b"? [a]\n: b\n").values()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("dataVersion: [{counter: 3, timestamp: 17}]", (3, 17)),
        ("dataVersion: [{counter: three, timestamp: 17}]", None),
        ("dataVersion: [{counter: 3, timestamp: late}]", None),
        ("dataVersion: [{counter: 3}]", None),
        ("dataVersion: [three]", None),
        ("dataVersion: []", None),
        ("dataVersion: 3", None),
        ("accounts: []", None),
    ],
)
def test_a_version_that_is_none_counts_as_none(text: str, version: tuple[int, int] | None) -> None:
    """And the next change is the first."""
    file = AccountFile.parse(text.encode())
    assert file.version == version
    file.count_change(99)
    assert file.version == ((version or (0, 0))[0] + 1, 99)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a:\n  b: [\n", ": look at line 3, column 1, and before"),
        ("a: @b", ": look at line 1, column 4, and before"),
        ("a: 'secret", ": look at line 1, column 11, and before"),
        ("a: b\0", ": look at character 5"),
        ("[" * 20_000, ""),
    ],
)
def test_it_is_told_where_a_file_stops_being_yaml(text: str, place: str) -> None:
    """And not what stands there, for that may be a secret."""
    with pytest.raises(ConfigError) as caught:
        AccountFile.parse(text.encode())
    assert str(caught.value) == f"it is not YAML{place}"
