"""Starts of a store that another program has changed: each start is correct or raises an error.

A start reports lost acknowledged messages. `longpoll store verify` finds damage in older files.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Final, cast
from zlib import crc32

import attrs
import pytest
from click.testing import CliRunner
from model_tests.support.broker.stores import SMALL, message, open_store, put_and_dispatch, read_all, result_of
from model_tests.support.faults import raising
from model_tests.support.store import Clock
from msgspec import structs

from longpoll.cli import main
from longpoll_broker.errors import StoreDamageError, StoreUserError
from longpoll_broker.store import segment
from longpoll_broker.store.commit_log import SPARE_SIZE, TIMES, ChecksumBudget, CommitLog, claimed_size
from longpoll_broker.store.consume_queue import PRE_BLANK_SIZE
from longpoll_broker.store.inspect import StoreDirectory
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import MessageToStore
from longpoll_broker.store.recovery import CHECKPOINT_SIZE
from longpoll_broker.store.verify import verify
from longpoll_protocol import log_record
from longpoll_protocol.codes import MessageSysFlag
from longpoll_protocol.log_record import MAGIC_V1, Record
from longpoll_protocol.sizes import KIB, MIB
from longpoll_runtime import Buffer
from longpoll_runtime.files import RealFiles, RealMappedFile
from longpoll_runtime.real import RealRuntime

COUNT = 34
BEFORE_CHECKPOINT = 30
BODY = bytes(200)
PREPARED = MessageSysFlag.TRANSACTION_PREPARED.value
BODY_AT = 100
"""A position in a record, in bytes, that is inside the record's body."""
FIRST = "0" * 20
NAMING: Final = attrs.evolve(SMALL, commit_log_file_size=16 * 1024, multi_dispatch=True)
Fault = Callable[[Path], object]


def made(directory: Path, *, closed: bool) -> None:
    """Create a store of two queues in several files each; close it, or kill it some messages after its checkpoint."""
    store = open_store(directory)
    for number in range(COUNT):
        if number == BEFORE_CHECKPOINT:
            store.index(999)
            store.flush_queues()
        put_and_dispatch(
            store, [message("TU"[number % 2], 0, b"%04d" % number + BODY, properties={"KEYS": f"k{number}"})]
        )
    store.flush()
    if closed:
        store.close()
    else:
        store.abandon()


def logs(store: Path) -> list[Path]:
    return sorted((store / "commitlog").iterdir())


def units(store: Path, topic: str = "T") -> list[Path]:
    return sorted((store / "consumequeue" / topic / "0").iterdir())


def whole(store: MessageStore) -> bool:
    """Whether every message can be read in order and can be found by its key."""
    for number, topic in enumerate("TU"):
        bodies = [record[88:92] for record in read_all(store, topic, 0)]
        if bodies != [b"%04d" % each for each in range(number, COUNT, 2)]:
            return False
    return all(len(result_of(store.query("TU"[n % 2], f"k{n}", 9, 0, 2**60))[0].records) == 1 for n in range(COUNT))


def whole_bodies(store: MessageStore) -> list[bytes]:
    return sorted(bytes(record[88:92]) for topic in "TU" for record in read_all(store, topic, 0))


def changed(file: Path, position: int, content: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(position)
        opened.write(content)


def flipped(file: Path, position: int, mask: int = 1) -> None:
    changed(file, position, bytes([file.read_bytes()[position] ^ mask]))


def future(store: Path) -> None:
    """Write a checkpoint with a future time in both of its copies."""
    for position in (0, 8, 16, 4064, 4072):
        changed(store / "checkpoint", position, struct.pack(">q", 2**61))


def future_place(store: Path) -> None:
    """Write a checkpoint that refers to a record far beyond the log's end."""
    changed(store / "checkpoint", CHECKPOINT_SIZE - 8, struct.pack(">q", 2**50))


def noise(store: Path) -> None:
    """Replace the checkpoint file by random bytes."""
    (store / "checkpoint").write_bytes(random.Random(1).randbytes(CHECKPOINT_SIZE))


def index_zeroed(store: Path) -> None:
    for each in (store / "index").iterdir():
        each.write_bytes(bytes(each.stat().st_size))


def index_noise(store: Path) -> None:
    for each in (store / "index").iterdir():
        each.write_bytes(random.Random(2).randbytes(each.stat().st_size))


def index_removed(store: Path) -> None:
    shutil.rmtree(store / "index")


def no_abort(store: Path) -> None:
    """Remove the abort file of a killed store."""
    (store / "abort").unlink(missing_ok=True)


def empty_file(store: Path) -> None:
    (store / "commitlog" / f"{int(logs(store)[-1].name) + 2048:020d}").touch()


def strangers(store: Path) -> None:
    """Add files with unknown names to every directory."""
    for name in (
        "commitlog/README",
        "consumequeue/.DS_Store",
        "consumequeue/T/note",
        "consumequeue/T/0/junk",
        "index/x",
    ):
        (store / name).write_text("x")


def file_for_queue(store: Path) -> None:
    (store / "consumequeue" / "T" / "7").write_text("x")


RIGHT: list[Fault] = [
    future, future_place, noise, index_zeroed, index_noise, index_removed, no_abort, empty_file, strangers,
    file_for_queue,
]  # fmt: skip


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("fault", RIGHT, ids=lambda fault: fault.__name__)
def test_a_start_after_a_harmless_fault_succeeds(tmp_path: Path, fault: Fault, closed: bool) -> None:
    made(tmp_path / "store", closed=closed)
    fault(tmp_path / "store")
    for _ in range(2):
        store = open_store(tmp_path / "store")
        assert whole(store)
        store.close()
        assert verify(RealFiles(), str(tmp_path / "store")).problems == []


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("which", ["directory", "first", "last", "unit", "rotten unit", "end"])
def test_lost_queues_are_rebuilt(tmp_path: Path, caplog: pytest.LogCaptureFixture, which: str, closed: bool) -> None:
    """The checkpoint contains the number of queue files, so a start also detects missing queues after a clean stop."""
    made(tmp_path / "store", closed=closed)
    if which == "directory":
        shutil.rmtree(tmp_path / "store" / "consumequeue" / "T")
    elif which in {"first", "last"}:
        units(tmp_path / "store")[0 if which == "first" else -1].unlink()
    else:
        # The newest queue file has the last seven of 17 units, and the checkpoint covers the first 15 units.
        at, byte = (6, b"\0") if which == "end" else (2, b"\x11" if which == "rotten unit" else b"\0")
        changed(units(tmp_path / "store")[-1], 20 * at, byte * 20)
    store = open_store(tmp_path / "store")
    assert whole(store)
    store.close()
    assert ("are made anew from the log" in caplog.text) is (closed or which.endswith("unit"))


@pytest.mark.parametrize("topic", ["T", "%LMQ%l"])
def test_a_wrong_bit_of_a_unit_is_logged_and_rebuilt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, topic: str
) -> None:
    """A start compares each unit's address, size and tag with the unit's record, so it finds any flipped bit."""
    config = attrs.evolve(NAMING, light_queues=True)
    store = open_store(tmp_path, config)
    sent = message("T", 0, b"body", tag="a", properties={"INNER_MULTI_DISPATCH": "%LMQ%l"})
    put_and_dispatch(store, [structs.replace(sent, inner_queues=(("%LMQ%l", 0),))] * 4)
    expected = [bytes(record) for record in read_all(store, topic, 0)]
    for bit in (*range(0, 160, 7), 103):
        store.close()
        caplog.clear()
        flipped(units(tmp_path, topic)[0], 20 + bit // 8, 1 << bit % 8)
        store = open_store(tmp_path, config)
        assert [bytes(record) for record in read_all(store, topic, 0)] == expected, bit
        assert store.unit(topic, 0, 1) == store.unit("T", 0, 1)
        assert "all queues are made anew from the log" in caplog.text, bit
    store.close()


@pytest.mark.parametrize("lost", [1, 2], ids=["last unit lost", "all units lost"])
def test_a_short_queue_that_lost_units_is_rebuilt(tmp_path: Path, lost: int) -> None:
    store = open_store(tmp_path)
    put_and_dispatch(store, [message("T"), message("T"), message("T", sys_flag=PREPARED), message("U")])
    store.close()
    changed(units(tmp_path)[0], 20 * (2 - lost), bytes(20 * lost))
    store = open_store(tmp_path)
    assert len(read_all(store, "T", 0)) == 2
    store.close()


@pytest.mark.parametrize("why", ["deleted", "wrong number"])
def test_records_that_no_queue_may_list_cause_no_rebuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    """No queue may list the log's last record, so a queue that ends before this record is complete."""
    store = open_store(tmp_path)
    put_and_dispatch(store, [message("T"), message("T"), message("U")])
    if why == "deleted":
        store.delete_topic("T")
        with monkeypatch.context() as patched:
            patched.setattr(CommitLog, "append", raising(OSError(errno.ENOSPC, "the disk is full")))
            with pytest.raises(OSError, match="full"):
                store.put(message("T"))
    store.close()
    if why == "wrong number":
        place, _size = records_of(tmp_path)[1]
        changed(logs(tmp_path)[0], place + 20, struct.pack(">q", 5_000))
    assert units(tmp_path)
    open_store(tmp_path).close()
    assert "made anew" not in caplog.text


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("count", [0, 26])
@pytest.mark.parametrize("which", ["directory", "unit"])
@pytest.mark.parametrize("end", ["kill", "power cut"])
def test_a_rebuild_that_is_cut_short_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, end: str, which: str, count: int, closed: bool
) -> None:
    """The next start rebuilds the queues again, even if a power cut has removed some of the queues' files."""
    made(tmp_path, closed=closed)
    if which == "directory":
        shutil.rmtree(tmp_path / "consumequeue" / "T")
    else:
        changed(units(tmp_path)[-1], 40, bytes(20))

    def killed(_store: MessageStore, dispatch: Callable[[int], object]) -> None:
        dispatch(count)
        raise InterruptedError

    with monkeypatch.context() as patched:
        patched.setattr(MessageStore, "_dispatch_all", killed)
        with pytest.raises(InterruptedError):
            open_store(tmp_path)
    if end == "power cut":
        shutil.rmtree(tmp_path / "consumequeue" / "T", ignore_errors=True)
    for _ in range(2):
        store = open_store(tmp_path)
        assert whole(store)
        store.close()


def test_a_rebuild_refuses_a_damaged_log(tmp_path: Path) -> None:
    """After a clean stop a rebuild reads older log files too, and the start is refused if any of them is damaged."""
    made(tmp_path, closed=True)
    units(tmp_path)[0].unlink()
    flipped(logs(tmp_path)[0], BODY_AT)
    with pytest.raises(StoreDamageError, match="run `longpoll store verify`"):
        open_store(tmp_path)
    flipped(logs(tmp_path)[0], BODY_AT)
    store = open_store(tmp_path)
    assert whole(store)
    store.close()


def test_a_rebuild_brings_no_deleted_topic_back(tmp_path: Path) -> None:
    """A deleted topic stays deleted, however often the store has been started since the deletion."""
    clock = Clock()

    def sent(body: bytes) -> None:
        clock.now_ms += 100_000
        store = MessageStore.open(clock, str(tmp_path), SMALL)
        put_and_dispatch(store, [message(topic, 0, body + BODY) for topic in "TU" for _ in range(10)])
        if body == b"old.":
            store.delete_topic("T")
        clock.now_ms += 100_000
        store.put(message("U"))
        store.close()

    for body in (b"old.", b"new.", b"last"):
        sent(body)
    units(tmp_path, "U")[-1].unlink()
    store = open_store(tmp_path)
    assert [record[88:92] for record in read_all(store, "T", 0)] == [b"new."] * 10 + [b"last"] * 10
    store.close()


REFUSED: list[tuple[str, Fault, str]] = [
    (
        "log cut in the middle",
        lambda store: os.truncate(logs(store)[1], 777),
        "has 777 bytes, but the settings say 2048",
    ),
    ("log file without bytes", lambda store: os.truncate(logs(store)[1], 0), "has 0 bytes, but the settings say 2048"),
    ("last log file too long", lambda store: os.truncate(logs(store)[-1], 5000), "has 5000 bytes"),
    ("log file gone", lambda store: logs(store)[2].unlink(), "restore the missing file"),
    (
        "copied queue",
        lambda store: shutil.copy(units(store)[0], units(store, "U")[0]),
        "this file belongs to another queue",
    ),
    ("deletions unreadable", lambda store: (store / "deletedTopics.json").write_text("{]"), "cannot be read"),
]


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize(("fault", "said"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED])
def test_a_start_after_a_harmful_fault_is_refused(tmp_path: Path, fault: Fault, said: str, closed: bool) -> None:
    """The error names the file, and the refused start changes nothing."""
    made(tmp_path / "store", closed=closed)
    shutil.copytree(tmp_path / "store", tmp_path / "kept")
    fault(tmp_path / "store")
    for _ in range(2):
        with pytest.raises(StoreUserError, match=said):
            open_store(tmp_path / "store")
    for part in ("commitlog", "consumequeue"):
        shutil.rmtree(tmp_path / "store" / part)
        shutil.copytree(tmp_path / "kept" / part, tmp_path / "store" / part)
    (tmp_path / "store" / "deletedTopics.json").unlink(missing_ok=True)
    store = open_store(tmp_path / "store")
    assert whole(store)


@pytest.mark.parametrize("how", ["bit", "length"])
def test_damage_before_complete_records_removes_nothing(tmp_path: Path, how: str) -> None:
    made(tmp_path / "store", closed=True)
    last = logs(tmp_path / "store")[-1]
    before = last.read_bytes()
    if how == "bit":
        flipped(last, 120)
    else:
        changed(last, 0, struct.pack(">i", 100_000))
    broken = last.read_bytes()
    with pytest.raises(StoreUserError, match=r"whole records follow from \d+ on"):
        open_store(tmp_path / "store")
    assert last.read_bytes() == broken != before
    last.write_bytes(before)
    store = open_store(tmp_path / "store")
    assert whole(store)


def test_a_damaged_log_without_checkpoint_is_opened_up_to_the_damage(tmp_path: Path) -> None:
    made(tmp_path / "store", closed=True)
    last = logs(tmp_path / "store")[-1]
    flipped(last, 120)
    (tmp_path / "store" / "checkpoint").unlink()
    store = open_store(tmp_path / "store")
    assert 0 < store.log_end == int(last.name)


@pytest.mark.parametrize(
    "fault", [lambda file: file.unlink(), lambda file: os.truncate(file, 0)], ids=["file removed", "file truncated"]
)
def test_a_lost_end_of_a_closed_log_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: Fault) -> None:
    made(tmp_path / "store", closed=True)
    fault(logs(tmp_path / "store")[-1])
    open_store(tmp_path / "store").close()
    assert "what is missing was acknowledged" in caplog.text


def cut(store: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((store / "commitlog_cut").glob("*"))}


def records_of(store: Path) -> list[tuple[int, int]]:
    found = StoreDirectory(RealFiles(), str(store))
    records = [(each.physical_offset, each.size) for each in found.walk_log() if isinstance(each, Record)]
    found.close()
    return records


def rotted(store: Path, physical_offset: int, byte: int = BODY_AT) -> None:
    file = [each for each in logs(store) if int(each.name) <= physical_offset][-1]
    flipped(file, physical_offset - int(file.name) + byte)


@pytest.mark.parametrize("byte", [0, 5, BODY_AT], ids=["size", "magic", "body"])
@pytest.mark.parametrize("number", range(BEFORE_CHECKPOINT, COUNT))
def test_damaged_records_after_the_checkpoint_are_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int, byte: int
) -> None:
    """A start cannot tell a corrupted record from a torn write, so it saves the records that it cuts off."""
    store = tmp_path / "store"
    made(store, closed=False)
    records = records_of(store)
    assert len(records) == COUNT
    rotted(store, records[number][0], byte)
    before = b"".join(file.read_bytes() for file in logs(store))
    opened = open_store(store)
    assert opened.log_end == records[number][0]
    assert opened.cut_size > 0
    opened.close()
    (line,) = [record for record in caplog.records if "are kept in" in record.getMessage()]
    assert f"ends at {records[number][0]}, where a record is damaged" in line.getMessage()
    following = records[number + 1][0] if number + 1 < COUNT else None
    assert (f"whole records follow from {following} on" in line.getMessage()) is (following is not None)
    assert line.levelname == ("WARNING" if following is None else "ERROR")
    kept = cut(store)
    assert sum(map(len, kept.values())) == opened.cut_size
    # In the saved copy, each removed byte has its old offset.
    again = bytearray(len(before))
    for name, content in kept.items():
        again[int(name) : int(name) + len(content)] = content
    assert again[records[number][0] :] == before[records[number][0] :]
    # When the user restores the saved bytes and corrects the wrong bit, the messages are readable again.
    assert verify(RealFiles(), str(store)).problems == []


PLACES = [
    ("far ahead", 20, struct.pack(">q", 5_000)),
    ("below 0", 20, struct.pack(">q", -3)),
    ("no queue's number", 12, struct.pack(">i", -7)),
    ("no directory's name", 92 + len(BODY) + 1, b"/"),
]
"""Fields that no checksum covers, as (name, offset in the record, changed bytes)."""


@pytest.mark.parametrize("number", [BEFORE_CHECKPOINT, COUNT - 1])
@pytest.mark.parametrize(("byte", "content"), [each[1:] for each in PLACES], ids=[each[0] for each in PLACES])
def test_a_record_with_an_impossible_offset_is_not_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int, byte: int, content: bytes
) -> None:
    store = tmp_path / "store"
    made(store, closed=False)
    place, _size = records_of(store)[number]
    size = SMALL.commit_log_file_size
    changed(logs(store)[place // size], place % size + byte, content)
    opened = open_store(store)
    (line,) = [each for each in caplog.messages if "nobody is shown it" in each]
    assert line.startswith(f"the record at {place} is damaged")
    assert {topic for topic, _id in opened.queues()} == {"T", "U"}
    assert {queue_id for _topic, queue_id in opened.queues()} == {0}
    assert whole_bodies(opened) == [b"%04d" % each for each in range(COUNT) if each != number]
    topic = "TU"[number % 2]
    found, _arrivals = put_and_dispatch(opened, [message(topic, 0, b"next")])
    assert found[0].queue_offset == COUNT // 2 - (number == COUNT - 1)
    assert read_all(opened, topic, 0)[-1][88:92] == b"next"


def test_lost_units_are_skipped_as_far_as_the_log_has_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = tmp_path / "store"
    made(store, closed=False)
    last = units(store)[-1]
    listed = len([each for each in struct.iter_unpack(">qiq", last.read_bytes()) if each[1]])
    assert listed == 7
    changed(last, 0, bytes(20 * listed))
    opened = open_store(store)
    assert "lacks units 10 to 14" in caplog.text
    assert "nobody is shown it" not in caplog.text
    assert read_all(opened, "T", 0)[-1][88:92] == b"%04d" % (COUNT - 2)
    assert "is damaged" not in caplog.text


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
def test_a_store_time_in_the_future_affects_only_its_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, closed: bool
) -> None:
    """One wrong bit in a record's store time must not give all later messages a future store time."""
    store = tmp_path / "store"
    made(store, closed=closed)
    place, _size = records_of(store)[-1]
    size = SMALL.commit_log_file_size
    changed(logs(store)[place // size], place % size + 56, struct.pack(">q", 2**60))
    opened = open_store(store)
    assert "speaks of a time to come" in caplog.text
    now_ms = RealRuntime().unix_ms()
    assert opened.put(message()).store_ms < now_ms + 3_600_000
    assert whole_bodies(opened) == [b"%04d" % each for each in range(COUNT)]


HEADS: Final = attrs.evolve(SMALL, commit_log_file_size=2 * MIB, message_size_max=MIB)


def full_of_heads(directory: Path, size: int) -> int:
    """Create a killed store whose last record is damaged and has a body of record headers; returns its offset."""
    store = open_store(directory, HEADS)
    put_and_dispatch(store, [message()])
    place = store.log_end
    start = place + 88
    body = bytearray(size)
    body[-4:] = b"\x01T\0\0"
    for at in range(0, size - 200, 128):
        struct.pack_into(">iIiiiqqiq", body, at, size - at, MAGIC_V1, 1, 0, 0, 0, start + at, 0, 0)
        struct.pack_into(">i", body, at + 84, size - at - 92)
    put_and_dispatch(store, [message(body=bytes(body))])
    store.abandon()
    rotted(directory, place, 8)
    return place


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []

    def counted(content: Buffer) -> int:
        sizes.append(len(content))
        return crc32(content)

    monkeypatch.setattr(log_record, "zlib", SimpleNamespace(crc32=counted))
    return sizes


def test_the_checksum_budget_grows_with_searched_bytes() -> None:
    checks = ChecksumBudget()
    assert not checks.may(SPARE_SIZE + 1)
    assert checks.may(SPARE_SIZE)
    assert not checks.may(1)
    checks.passed(5)
    assert not checks.may(TIMES * 5 + 1)
    assert checks.may(TIMES * 5)
    assert not checks.may(1)


@pytest.mark.parametrize(
    ("size", "place", "claimed"),
    [(91, 707, 91), (193, 707, 193), (194, 707, 0), (90, 707, 0), (-1, 707, 0), (91, 708, 0), (91, 7, 0)],
)
def test_a_record_header_must_have_its_offset_and_fit(size: int, place: int, claimed: int) -> None:
    """The search computes no checksum for a header with a wrong offset or whose record does not fit into the file."""
    content = bytearray(200)
    struct.pack_into(">iIiiiqqiq", content, 7, size, MAGIC_V1, 1, 0, 0, 0, place, 0, 0)
    assert claimed_size(memoryview(content), 7, 707) == claimed
    assert claimed_size(memoryview(content)[:54], 7, 707) == claimed_size(memoryview(content), -1, 707) == 0


def test_record_headers_in_a_body_do_not_slow_a_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, checked: list[int]
) -> None:
    """If each header cost a checksum of all following bytes, a body of 4 MiB would take fifteen seconds."""
    place = full_of_heads(tmp_path / "store", MIB)
    checked.clear()
    opened = open_store(tmp_path / "store", HEADS)
    assert sum(checked) <= SPARE_SIZE + (TIMES + 2) * MIB
    assert opened.log_end == place
    assert "what begins as records follows from" in caplog.text
    assert opened.cut_size > MIB, "the record is kept"


def test_record_headers_in_a_body_do_not_slow_a_verification(tmp_path: Path, checked: list[int]) -> None:
    full_of_heads(tmp_path / "store", MIB)
    with logs(tmp_path / "store")[0].open("r+b") as file:
        content = file.read()
        end = len(content.rstrip(b"\0"))
        whole_one = bytearray(content[:142])
        size = int.from_bytes(whole_one[:4])
        struct.pack_into(">q", whole_one, 28, end + 2)
        file.seek(end + 2)
        file.write(whole_one[:size])
    checked.clear()
    verdict = verify(RealFiles(), str(tmp_path / "store"))
    assert sum(checked) <= SPARE_SIZE + (TIMES + 3) * MIB
    assert verdict.messages == 2
    assert [each.found[:8] for each in verdict.problems if each.file.startswith("commitlog")] == ["body CRC"]


def naming(body: bytes, names: list[str], queue_id: int = 0, offsets: str = "") -> MessageToStore:
    """A message of topic T that names additional queues; `offsets` are its forged offsets in these queues."""
    properties = {"INNER_MULTI_DISPATCH": ",".join(names)}
    if offsets:
        return message("T", queue_id, body, properties=properties | {"INNER_MULTI_QUEUE_OFFSET": offsets})
    inner_queues = tuple((name, queue_id) for name in names)
    return structs.replace(message("T", queue_id, body, properties=properties), inner_queues=inner_queues)


@pytest.mark.parametrize("fault", ["queue id", "digits"])
def test_impossible_additional_queues_do_not_stop_a_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    store = open_store(tmp_path / "store", NAMING)
    offsets = "9" * 5000 if fault == "digits" else ""
    put_and_dispatch(store, [naming(b"a", ["A"], 3)])
    store.put(naming(b"b", ["A"], 3, offsets))
    place = store.put(naming(b"c", ["A"], 3)).physical_offset
    store.abandon()
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    if fault == "queue id":
        changed(logs(tmp_path / "store")[0], place + 12, struct.pack(">i", 3 - 2**31))
    opened = open_store(tmp_path / "store", NAMING)
    ends = (2, 2) if fault == "queue id" else (3, 2)
    assert (opened.visible_end("T", 3), opened.visible_end("A", 3)) == ends
    assert ("nobody is shown it: queue id" in caplog.text) is (fault == "queue id")


def test_a_wrong_offset_fills_no_additional_queue(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(tmp_path / "store", NAMING)
    put_and_dispatch(store, [naming(b"x", ["A"]) for _ in range(12)])
    store.abandon()
    log = logs(tmp_path / "store")[0]
    content = log.read_bytes()
    (place,) = (at for at in range(len(content)) if content.startswith(b"INNER_MULTI_QUEUE_OFFSET\x0111\x02", at))
    changed(log, place + 25, b"99")
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    opened = open_store(tmp_path / "store", NAMING)
    assert (opened.visible_end("T", 0), opened.visible_end("A", 0)) == (12, 11)
    assert "says that it is number 99 of A queue 0, which has 11, and so many others do not fit" in caplog.text


def test_a_message_naming_its_own_queue_hides_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If a message names its own queue as an additional queue, RocketMQ assigns two offsets in this queue to it."""
    store = open_store(tmp_path / "store", NAMING)
    for number in range(9):
        each = naming(b"0", ["T"]) if number % 4 == 1 else message("T", body=b"%d" % number)
        put_and_dispatch(store, [each])
    store.close()
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    opened = open_store(tmp_path / "store", NAMING)
    assert "nobody is shown it" not in caplog.text
    units_there = [opened.unit("T", 0, offset) for offset in range(opened.visible_end("T", 0))]
    assert len({unit[0] for unit in units_there if unit is not None and unit[1] != PRE_BLANK_SIZE}) == 9


def test_a_long_retry_topic_of_rocketmq_5_is_rebuilt(tmp_path: Path) -> None:
    """Group names of 5.x have up to 255 characters, and the names of their retry topics are longer."""
    topic = "%RETRY%" + "g" * 248
    (tmp_path / "store" / "consumequeue" / topic / "0").mkdir(parents=True)
    (tmp_path / "store" / "consumequeue" / topic / "0" / FIRST).write_bytes(bytes(SMALL.consume_queue_file_size))
    store = open_store(tmp_path / "store")
    put_and_dispatch(store, [message(topic, body=b"long")])
    store.close()
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    opened = open_store(tmp_path / "store")
    assert [each[88:92] for each in read_all(opened, topic, 0)] == [b"long"]


def test_a_damaged_size_hides_no_complete_record(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One damaged record size must not use up all the checksums that the search may compute."""
    big = attrs.evolve(SMALL, commit_log_file_size=256 * MIB)
    store = open_store(tmp_path / "store", big)
    places = [each.physical_offset for each in put_and_dispatch(store, [message() for _ in range(9)])[0]]
    store.abandon()
    log = logs(tmp_path / "store")[0]
    changed(log, places[3] + 88, b"x")
    changed(log, places[4], struct.pack(">i", 200 * MIB))
    verdict = verify(RealFiles(), str(tmp_path / "store"))
    assert verdict.messages == 7
    assert [each.offset for each in verdict.problems if each.file.startswith("commitlog")] == [places[3] + 8]
    opened = open_store(tmp_path / "store", big)
    assert opened.log_end == places[3]
    assert f"whole records follow from {places[5]} on" in caplog.text


def test_many_damaged_records_do_not_slow_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a start searched a megabyte after each of thousands of damaged records, it would take minutes."""
    sizes: list[int] = []
    monkeypatch.setattr(ChecksumBudget, "passed", lambda _self, size: sizes.append(size))
    store = open_store(tmp_path / "store", HEADS)
    places = [each.physical_offset for each in put_and_dispatch(store, [message() for _ in range(40)])[0]]
    store.close()
    for place in places[::2]:
        changed(logs(tmp_path / "store")[0], place + 88, b"x")
    assert verify(RealFiles(), str(tmp_path / "store")).messages == 20
    assert 0 < sum(sizes) <= 20 * 8 * KIB


def test_verification_continues_without_checksum_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChecksumBudget, "may", lambda *_: False)
    store = open_store(tmp_path / "store")
    places = [each.physical_offset for each in put_and_dispatch(store, [message() for _ in range(9)])[0]]
    store.close()
    for place in places[3:5]:
        changed(logs(tmp_path / "store")[0], place + 88, b"x")
    assert verify(RealFiles(), str(tmp_path / "store")).messages == 7
    # The size of the second damaged record covers two whole records.
    changed(logs(tmp_path / "store")[0], places[4], struct.pack(">i", places[7] - places[4]))
    assert verify(RealFiles(), str(tmp_path / "store")).messages == 5


def test_verification_skips_sparse_ranges_and_reports_cuts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(ChecksumBudget, "passed", lambda _self, size: sizes.append(size))
    big = attrs.evolve(SMALL, commit_log_file_size=64 * MIB)
    store = open_store(tmp_path / "store", big)
    places = [each.physical_offset for each in put_and_dispatch(store, [message() for _ in range(9)])[0]]
    store.abandon()
    changed(logs(tmp_path / "store")[0], places[-1] + 88, b"x")
    rot = verify(RealFiles(), str(tmp_path / "store"))
    assert (rot.cut_files, rot.cut_bytes) == (0, 0)
    assert 0 < sum(sizes) < 2 * MIB
    opened = open_store(tmp_path / "store", big)
    opened.close()
    found = verify(RealFiles(), str(tmp_path / "store"))
    assert (found.cut_files, found.cut_bytes) == (1, opened.cut_size)
    assert found.problems == []
    lines = CliRunner().invoke(main, ["store", "verify", str(tmp_path / "store")]).output
    assert f"{opened.cut_size} bytes in 1 files of commitlog_cut" in " ".join(lines.split())
    told = json.loads(CliRunner().invoke(main, ["store", "verify", str(tmp_path / "store"), "--json"]).output)
    assert told["cut"] == {"files": 1, "bytes": opened.cut_size}


def test_verification_counts_messages_that_lack_a_sector(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    places = [each.physical_offset for each in put_and_dispatch(store, [message(tag="abc") for _ in range(3)])[0]]
    store.close()
    assert verify(RealFiles(), str(tmp_path / "store")).lacking == 0
    changed(logs(tmp_path / "store")[0], places[1] - 1, b"\0")
    assert verify(RealFiles(), str(tmp_path / "store")).lacking == 1
    output = CliRunner().invoke(main, ["store", "verify", str(tmp_path / "store")]).output
    assert "1 messages may lack a disk sector" in " ".join(output.split())


def test_damage_at_one_place_is_saved_twice(tmp_path: Path) -> None:
    store = tmp_path / "store"
    made(store, closed=False)
    place, _size = records_of(store)[BEFORE_CHECKPOINT]
    before = {file.name: file.read_bytes() for file in logs(store)}
    found = []
    for _ in range(3):
        rotted(store, place)
        opened = open_store(store)
        opened.abandon()
        found.append(cut(store))
        for file in logs(store):
            file.unlink()
        for name, content in before.items():
            (store / "commitlog" / name).write_bytes(content)
    first = list(found[0])
    assert [len(each) for each in found] == [len(first), 2 * len(first), 3 * len(first)]
    assert set(found[2]) == {f"{name}{again}" for name in first for again in ("", ".1", ".2")}
    assert found[2] == found[2] | found[1] | found[0]


def with_much_rotten(store: Path) -> int:
    """Damage a record in the first of several log files of a killed store; returns the record's offset."""
    made(store, closed=False)
    (store / "checkpoint").unlink()
    place, _size = records_of(store)[2]
    rotted(store, place)
    assert len(logs(store)) > 2
    return place


@pytest.mark.parametrize("written", [0, 1, 2])
def test_damaged_bytes_that_cannot_be_saved_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    """If the damaged bytes cannot be saved, the store is not opened and no file changes."""
    store = tmp_path / "store"
    place = with_much_rotten(store)
    before = {file.name: file.read_bytes() for file in logs(store)}
    write, room = RealFiles.write_atomic, [None] * written

    def fails(files: RealFiles, path: str, content: Buffer) -> None:
        if "commitlog_cut" in path and not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        room.pop()
        write(files, path, content)

    with monkeypatch.context() as patch:
        patch.setattr(RealFiles, "write_atomic", fails)
        with pytest.raises(
            StoreUserError, match=f"ends at {place}, where a record .* No space left .* was not changed"
        ):
            open_store(store)
    assert not room
    assert ({file.name: file.read_bytes() for file in logs(store)}, cut(store)) == (before, {})
    opened = open_store(store)
    assert opened.log_end == place
    opened.close()
    assert len(cut(store)) == len(before)


class KilledError(BaseException):
    """Raised in place of a kill of the process."""


def test_a_killed_start_leaves_no_partial_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    place = with_much_rotten(store)
    before = b"".join(file.read_bytes() for file in logs(store))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", raising(KilledError()))
        with pytest.raises(KilledError):
            open_store(store)
    assert [name for name in cut(store) if not name.endswith(".tmp")] == []
    opened = open_store(store)
    opened.close()
    kept = cut(store)
    assert sum(map(len, kept.values())) == opened.cut_size
    assert before[place:].startswith(kept[f"{place:020}"])


def test_a_search_allocates_no_memory_for_sparse_ranges() -> None:
    """On a tmpfs, reading a hole allocates memory, so the search skips holes."""
    size, written = 16 * segment.PIECE_SIZE, 5000
    descriptor = os.memfd_create("log")
    try:
        os.ftruncate(descriptor, size)
        os.pwrite(descriptor, b"x", written)
        mapped = RealMappedFile(f"/proc/self/fd/{descriptor}", size, writable=True, descriptor=descriptor)
        looked_through = cast("segment.Segment", SimpleNamespace(size=size, mapped=mapped))
        for at, stop in segment.Segment.data(looked_through, written - 1):
            assert bytes(mapped.view[at:stop]).strip(b"\0") == b"x"
        assert 0 < os.fstat(descriptor).st_blocks * 512 <= segment.PIECE_SIZE
        mapped.close()
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("before", range(8))
def test_a_record_is_found_across_two_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    store = tmp_path / "store"
    made(store, closed=True)
    place, _size = records_of(store)[-1]
    rotted(store, records_of(store)[-2][0])
    monkeypatch.setattr(segment, "PIECE_SIZE", place % SMALL.commit_log_file_size + before)
    with pytest.raises(StoreUserError, match=f"whole records follow from {place}"):
        open_store(store)


def test_damage_in_the_last_millisecond_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RealRuntime, "unix_ms", lambda _: 1_800_000_000_000)
    store = tmp_path / "store"
    made(store, closed=True)
    records = records_of(store)
    before = {file.name: file.read_bytes() for file in logs(store)}
    rotted(store, records[-2][0])
    with pytest.raises(StoreUserError, match=f"whole records follow from {records[-1][0]}"):
        open_store(store)
    rotted(store, records[-2][0])
    assert {file.name: file.read_bytes() for file in logs(store)} == before
    # No record follows the log's last record, so the damaged record is cut off, saved and reported.
    rotted(store, records[-1][0])
    opened = open_store(store)
    assert (opened.log_end, opened.cut_size) == (records[-1][0], records[-1][1])


@pytest.mark.parametrize("position", [8, 40, 100])
def test_a_partial_record_of_a_kill_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture, position: int) -> None:
    """The mark of a record is written last, so a record without a mark was never acknowledged."""
    store = tmp_path / "store"
    made(store, closed=False)
    place, size = records_of(store)[-1]
    changed(logs(store)[-1], (place + size) % SMALL.commit_log_file_size + position, b"x" * 50)
    opened = open_store(store)
    assert whole(opened)
    assert opened.cut_size == 0
    opened.close()
    assert cut(store) == {}
    assert "damaged" not in caplog.text
