"""Parts of a store that we do not read, and the names that light queues have in a store of RocketMQ."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from attrs import evolve
from click.testing import CliRunner
from model_tests.support.broker.stores import SMALL, message, open_store, put_and_dispatch
from msgspec.structs import replace

from longpoll.cli import main
from longpoll_broker.errors import StoreUserError
from longpoll_broker.store.queues.inner_queues import inner_places
from longpoll_broker.store.verify import verify
from longpoll_protocol.log_record import Record
from longpoll_protocol.properties import INNER_OFFSETS, INNER_QUEUES
from longpoll_runtime.files import RealFiles

LIGHT = evolve(SMALL, multi_dispatch=True, light_queues=True)
DEVICE = "%LMQ%device.1"
FILE = "0" * 20
PARTS = {
    "batchconsumequeue": (f"batchconsumequeue/B/0/{FILE}", "batch consume queues"),
    "consumequeue_r": ("consumequeue_r/CURRENT", "consume queues in RocksDB"),
    "compaction": ("compaction/compactionLog/C/0/x", "compacted topics"),
    "config/topics": ("config/topics/CURRENT", "a RocksDB database"),
    "transrocksdb": ("transrocksdb/CURRENT", "a RocksDB database"),
}


def filled(store: Path) -> None:
    """A closed store with a message."""
    opened = open_store(store)
    put_and_dispatch(opened, [message()])
    opened.close()


@pytest.mark.parametrize("part", PARTS)
def test_a_store_with_parts_that_are_not_read_is_refused_and_never_sound(tmp_path: Path, part: str) -> None:
    """Nothing of it is changed; a directory without anything in it is nothing."""
    path, what = PARTS[part]
    filled(tmp_path)
    file = tmp_path / path
    (tmp_path / part).mkdir(parents=True)
    assert verify(RealFiles(), str(tmp_path)).unread == []
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x")
    before = {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")}
    with pytest.raises(StoreUserError, match=f"has {what} in {part}, which this broker does not read"):
        open_store(tmp_path)
    assert {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")} == before
    shown = CliRunner().invoke(main, ["store", "verify", str(tmp_path)])
    assert (shown.exit_code, "sound" in shown.output) == (3, False)
    assert f"{part} was not checked" in " ".join(shown.output.split())


def test_extended_queues_that_the_settings_leave_out_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By the start; with the setting it says nothing."""
    extended = evolve(SMALL, extended_queues=True)
    opened = open_store(tmp_path, extended)
    put_and_dispatch(opened, [message()])
    opened.close()
    with caplog.at_level(logging.WARNING):
        open_store(tmp_path, extended).close()
        assert "enableConsumeQueueExt" not in caplog.text
        open_store(tmp_path).close()
    assert "set enableConsumeQueueExt=true" in caplog.text
    assert [part.path for part in verify(RealFiles(), str(tmp_path)).unread] == ["consumequeue_ext"]


@pytest.mark.parametrize("name", [DEVICE, "%LMQ%a b", "%LMQ%ü", "%LMQ%" + "x" * 250], ids=len)
@pytest.mark.parametrize("crashed", [False, True])
def test_a_light_queue_may_have_any_name_of_a_directory(tmp_path: Path, name: str, crashed: bool) -> None:
    """As in RocketMQ: the store is opened again, and sound; after a clean stop without the settings as well."""
    store = open_store(tmp_path, LIGHT)
    sent = replace(message(properties={INNER_QUEUES: name}), inner_queues=((name, 0),))
    put_and_dispatch(store, [sent])
    if crashed:
        store.flush_queues()
        store.abandon()
    else:
        store.close()
    for config in (LIGHT, LIGHT) if crashed else (SMALL, LIGHT):
        again = open_store(tmp_path, config)
        assert again.visible_end(name, 0) == 1
        again.close()
        assert verify(RealFiles(), str(tmp_path)).problems == []


def places(names: str, offsets: str) -> list[tuple[str, int, int]]:
    """Where a record that says this is listed besides its queue."""
    properties = f"{INNER_QUEUES}\x01{names}\x02{INNER_OFFSETS}\x01{offsets}".encode()
    record = Record(100, 0, 0, 7, 0, 5, 700, 0, 0, b"", 1_000, b"", 0, 0, memoryview(b""), "T", properties)
    return inner_places(record, light=True)


def test_a_name_that_is_no_directorys_is_passed_over() -> None:
    """Of a light queue or another; the others of the record are listed all the same."""
    assert places(f"%LMQ%../x,../x,a.b,U,{DEVICE}", "1,2,3,4,5") == [("U", 7, 4), (DEVICE, 0, 5)]
    assert places("%LMQ%" + "x" * 251 + ",%LMQ%\x07,%LMQ%", "1,2,3") == [("%LMQ%", 0, 3)]
    assert places("U,V", "1") == []
