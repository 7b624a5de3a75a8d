"""The tables on disk: backups, what cannot be read, and a disk that fails in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from longpoll_broker.core.tables.offsets import Offsets
from longpoll_broker.core.tables.topics import Groups, TopicConfig, Topics
from longpoll_broker.service.upkeep.config_files import GROUPS, OFFSETS, TOPICS, ConfigFiles
from longpoll_broker.service.upkeep.schedule_service import DelayOffsets
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError


def tables(directory: Path) -> ConfigFiles:
    """The tables of a directory, loaded."""
    files = ConfigFiles(RealRuntime(), str(directory), Topics(), Groups(), Offsets(), DelayOffsets())
    files.load()
    return files


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A directory with every table saved twice, so that each has its backup."""
    files = tables(tmp_path)
    for number in (1, 2):
        files.topics.put(TopicConfig(f"T{number}"))
        files.groups.find(f"G{number}")
        files.offsets.commit("T", "G", 0, number)
        files.delays.by_level[3] = number
        files.delays.changed = True
        files.save()
    return tmp_path


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"topicConfigTable":[]}', b"\xff", b"[" * 5000])
def test_a_table_that_cannot_be_read_is_taken_from_its_backup_and_repaired(saved: Path, damage: bytes) -> None:
    """The next save writes it anew, and keeps the backup until then and after: nobody needs the damaged one."""
    backup = (saved / f"{TOPICS}.bak").read_bytes()
    (saved / TOPICS).write_bytes(damage)
    files = tables(saved)
    assert files.topics.get("T1") is not None
    assert files.topics.get("T2") is None
    files.save()
    assert (saved / f"{TOPICS}.bak").read_bytes() == backup
    (saved / f"{TOPICS}.bak").unlink()
    assert tables(saved).topics.get("T1") is not None


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            TOPICS,
            '{"topicConfigTable":{"T":{"topicName":"T","readQueueNums":1000000000}}}',
            "1000000000 queues, at most",
        ),
        (TOPICS, '{"topicConfigTable":{"T":{"topicName":"T","writeQueueNums":16385}}}', "16385 queues, at most 16384"),
        (OFFSETS, '{"offsetTable":{"T@G":{"0":9223372036854775808}}}', "cannot be used"),
        (OFFSETS, '{"offsetTable":{"T@G":{"0":"x"}}}', "cannot be used"),
    ],
)
def test_a_number_that_nobody_can_serve_is_refused(tmp_path: Path, name: str, content: str, said: str) -> None:
    """A topic of a billion queues would cost whoever asks for it, and all others, minutes and gigabytes."""
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=said):
        tables(tmp_path)


def test_the_greatest_numbers_are_served(tmp_path: Path) -> None:
    """One less than what is refused."""
    (tmp_path / TOPICS).write_text('{"topicConfigTable":{"T":{"topicName":"T","readQueueNums":16384}}}')
    (tmp_path / OFFSETS).write_text('{"offsetTable":{"T@G":{"0":9223372036854775807}}}')
    files = tables(tmp_path)
    assert files.offsets.by_pair["T@G"] == {0: 2**63 - 1}
    assert files.topics.get("T") is not None


def test_a_disk_that_fails_while_a_table_is_repaired_loses_nothing(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backup is the only whole one, and is not replaced by the damaged one."""
    (saved / OFFSETS).write_bytes(b"{")
    files = tables(saved)
    write_atomic = files.runtime.files.write_atomic

    def fails_in_the_end(path: str, content: bytes) -> None:
        if path.endswith(OFFSETS):
            raise OSError("planted")
        write_atomic(path, content)

    monkeypatch.setattr(files.runtime.files, "write_atomic", fails_in_the_end)
    with pytest.raises(OSError, match="planted"):
        files.save()
    assert tables(saved).offsets.query("T", "G", 0) == 1


def test_nothing_is_begun_without_a_table_that_was_there(saved: Path) -> None:
    """Neither file can be read: the user is told which, and nothing is written."""
    for name in (GROUPS, f"{GROUPS}.bak"):
        (saved / name).write_bytes(b"{")
    with pytest.raises(ConfigError, match=r"subscriptionGroup\.json\.bak cannot be read"):
        tables(saved)
    assert (saved / GROUPS).read_bytes() == b"{"


def test_a_directory_without_tables_begins_empty(tmp_path: Path) -> None:
    """And saves nothing as long as nothing changes; an absent table of a file is an empty one."""
    tables(tmp_path).save()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / TOPICS).write_bytes(b'{"dataVersion":{"counter":1},"topicConfigTable":null}')
    assert tables(tmp_path).topics.by_name == {}
