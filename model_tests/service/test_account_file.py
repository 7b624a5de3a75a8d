"""The file of accounts: its text, when it is read, and what of it counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from attrs import define, field

from longpoll_broker.core.tables.access import Right, Rules
from longpoll_broker.service.access import access_control
from longpoll_broker.service.access.access_control import LOOK_S, AccessControl, read_rules
from longpoll_broker.service.access.account_file import AccountFile
from longpoll_broker.service.io.channel import Channel
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_runtime.files import RealFiles
from longpoll_runtime.logs import event
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError


def written(text: str) -> str:
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
    assert written("a: &a [*a]\n") == "a: &id001\n- *id001\n"
    assert written("a: &a {b: c}\nd: *a\n") == "a: &id001\n  b: c\nd: *id001\n"


@pytest.mark.parametrize("is_admin", [True, False])
def test_an_administrator_is_written_as_one(is_admin: bool) -> None:
    file = AccountFile.parse(b"")
    file.put_account("newcomer", {"admin": is_admin})
    assert file.text().decode() == f"accounts:\n- accessKey: newcomer\n  admin: {str(is_admin).lower()}\n"


def test_what_is_null_is_left_out() -> None:
    assert AccountFile.parse(b"a: [~, b, null]\nc: ~\nd: {e: ~, f: 'null'}\n").values() == {
        "a": ["b"],
        "d": {"f": "null"},
    }


def test_a_key_that_is_no_text_is_told_of() -> None:
    with pytest.raises(ConfigError, match="a key in it is no text"):
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
        ("[" * 500, ""),
    ],
)
def test_it_is_told_where_a_file_stops_being_yaml(text: str, place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AccountFile.parse(text.encode())
    assert str(caught.value) == f"it is no YAML{place}"


FIELDS: Final = next(iter(event("")))
LOOK_NS: Final = int(LOOK_S * 1e9)
GOOD: Final = b"accounts:\n- {accessKey: somebody, secretKey: 12345678}\n"
OTHER: Final = GOOD + b"- {accessKey: another, secretKey: 12345678}\n"
BAD: Final = b"accounts: 7\n"
CHANNEL: Final = cast("Channel", SimpleNamespace(peer_host=("10.0.0.1", 1), peer="10.0.0.1:1"))
PULL: Final = Command(code=RequestCode.PULL_MESSAGE, ext_fields={"AccessKey": "another", "Signature": ""})


@define(eq=False)
class World:
    """A file of accounts, the control that reads it, and a clock that stands until it is set."""

    path: Path
    control: AccessControl
    now_ns: int = 0
    held: list[bool] = field(factory=list)
    """Of each look at the file, whether the guard was held."""

    def look(self, content: bytes | None, after_ns: int = LOOK_NS) -> str | None:
        """Put a content there, or nothing, and let a request come some time after the one before; its refusal."""
        self.now_ns += after_ns
        if content is None:
            self.path.unlink(missing_ok=True)
        else:
            self.path.write_bytes(content)
        refused = self.control.refusal(CHANNEL, PULL)
        assert refused is not None
        return "unknown" if b"No acl config" in b"".join(map(bytes, refused)) else "known"


@define(eq=False)
class Guard:
    """A lock that says whether it is held."""

    is_held: bool = False

    def __enter__(self) -> None:
        assert not self.is_held
        self.is_held = True

    def __exit__(self, *_: object) -> None:
        self.is_held = False


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    path = tmp_path / "plain_acl.yml"
    path.write_bytes(GOOD)
    guard = Guard()
    read = RealFiles.read

    def noted(files: RealFiles, name: str) -> bytes:
        made.held.append(guard.is_held)
        return read(files, name)

    runtime = RealRuntime()
    runtime.monotonic_ns = lambda: made.now_ns
    made = World(path, AccessControl(runtime, str(path)))
    made.control._guard = cast("Any", guard)
    monkeypatch.setattr(RealFiles, "read", noted)
    yield made
    assert all(made.held)


def told(caplog: pytest.LogCaptureFixture, name: str) -> int:
    """How many lines tell of such an event; they are forgotten."""
    names = [getattr(record, FIELDS)["event"] for record in caplog.records if hasattr(record, FIELDS)]
    caplog.clear()
    return names.count(name)


def test_the_file_is_looked_at_twice_a_second_at_most(world: World) -> None:
    """By the requests that come; not by those in between, and under the guard."""
    for after_ns, count in ((LOOK_NS, 1), (0, 1), (LOOK_NS - 1, 1), (1, 2), (LOOK_NS - 1, 2), (1, 3), (9 * LOOK_NS, 4)):
        world.look(GOOD, after_ns)
        assert len(world.held) == count


def test_a_content_counts_from_the_first_look_at_it(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """And is told of once, not each time that it is found unchanged."""
    assert world.look(GOOD) == "unknown"
    assert told(caplog, "accounts_read") == 0
    assert [world.look(OTHER) for _ in range(3)] == ["known"] * 3
    assert told(caplog, "accounts_read") == 1


def test_what_cannot_be_used_is_told_once_each_time_that_it_comes(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[bytes] = []

    def noted(content: bytes, path: str) -> Rules:
        tried.append(content)
        return read_rules(content, path)

    monkeypatch.setattr(access_control, "read_rules", noted)
    world.look(OTHER)
    for content, lines in ((BAD, 1), (BAD, 0), (None, 1), (None, 0), (None, 0), (OTHER, 0), (None, 1), (None, 0)):
        told(caplog, "accounts_unusable")
        assert world.look(content) == "known"
        assert told(caplog, "accounts_unusable") == lines
    assert tried == [OTHER, BAD, OTHER]


def test_a_file_that_is_too_long_is_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_control, "FILE_SIZE_MAX", len(OTHER))
    assert world.look(OTHER) == "known"
    monkeypatch.setattr(access_control, "FILE_SIZE_MAX", len(OTHER) - 1)
    with pytest.raises(ConfigError, match=f"have {len(OTHER)} bytes, over the limit of {len(OTHER) - 1}"):
        AccessControl(RealRuntime(), str(world.path))
    world.held.clear()

    def edit(file: AccountFile) -> bool:
        file.put_white_addresses(["10.0.0.9"])
        return True

    world.look(GOOD)
    monkeypatch.setattr(RealRuntime, "unix_ms", lambda _: 1)
    changed = AccountFile.parse(GOOD)
    edit(changed)
    changed.count_change(1)
    size = len(changed.text())
    monkeypatch.setattr(access_control, "FILE_SIZE_MAX", size - 1)
    with pytest.raises(ConfigError, match=f"would have {size} bytes, over the limit of {size - 1}"):
        world.control.change(edit)
    assert world.path.read_bytes() == GOOD
    monkeypatch.setattr(access_control, "FILE_SIZE_MAX", size)
    assert world.control.change(edit)
    assert len(world.path.read_bytes()) == size


def test_entries_that_are_empty_are_none() -> None:
    """As people leave them in a file that they copied, and tools write them."""
    text = b"globalWhiteRemoteAddresses: ''\naccounts:\n- accessKey: somebody\n  secretKey: '12345678'\n"
    empty = b"".join(
        b"  %s: ''\n" % name
        for name in (b"whiteRemoteAddress", b"admin", b"defaultTopicPerm", b"defaultGroupPerm", b"groupPerms")
    )
    rules = read_rules(text + empty + b"  topicPerms: [T=PUB]\n", "plain_acl.yml")
    account = rules.accounts["somebody"]
    assert (rules.white, account.is_admin, account.rights) == ((), False, {"T": Right.PUB})
    assert (account.default_topic, account.default_group) == (Right.DENY, Right.DENY)
    assert not account.is_white("10.0.0.1")
