"""What a record in the log holds, whatever numbers its sender gave."""

from __future__ import annotations

import errno
import itertools
import re
from pathlib import Path
from typing import Final

import pytest
from attrs import evolve
from msgspec import structs

from longpoll_broker.errors import SyncFailedError
from longpoll_broker.store import segment
from longpoll_broker.store.log.commit_log import HOST_BITS, CommitLog, encode_record, size_of
from longpoll_broker.store.messages import MessageToStore
from longpoll_broker.store.segment import SegmentList
from longpoll_broker.store.verify import verify
from longpoll_broker.testing.stores import HOST, HOST_V6, SMALL, message, open_store, put_and_dispatch
from longpoll_protocol.errors import MessageRefusedError
from longpoll_protocol.log_record import (
    MAGIC_BLANK,
    SIZE_AND_MAGIC,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
    Damage,
    Record,
)
from longpoll_runtime.files import RealFiles, RealMappedFile


def any_numbers() -> list[MessageToStore]:
    """A message for every bit that a sender may set, from either kind of host, with the ends of every other number."""
    flags = [*(1 << bit for bit in range(31)), -(2**31), -1, 0x30, 0]
    numbers = [(-(2**31), -(2**63)), (2**31 - 1, 2**63 - 1)]
    return [
        structs.replace(
            message("Orders", 0, b"body", born_host=hosts[0], store_host=hosts[1]),
            sys_flag=sys_flag,
            flag=small,
            reconsume_times=small,
            born_ms=large,
            prepared_offset=large,
        )
        for sys_flag in flags
        for hosts in itertools.product((HOST, HOST_V6), repeat=2)
        for small, large in numbers
    ]


def found_by_verify(directory: Path) -> list[str]:
    """What a store of such messages looks like."""
    store = open_store(directory, evolve(SMALL, commit_log_file_size=65_536))
    put_and_dispatch(store, any_numbers())
    store.close()
    return [problem.found for problem in verify(RealFiles(), str(directory)).problems]


def test_no_number_of_a_sender_makes_a_record_unreadable(tmp_path: Path) -> None:
    """The bits that say how long the hosts are are the store's own: believed, they would end the log for everybody."""
    assert found_by_verify(tmp_path) == []


def test_no_slice_reaches_past_the_end(tmp_path: Path) -> None:
    """Neither past what was written, where zeros are mapped, nor into another file."""
    store = open_store(tmp_path)
    put = [store.put(message(body=b"b" * 300)) for _ in range(8)]
    log = store._log
    assert len(log.segments.segments) > 1, "the log must have rolled over"
    for result in put:
        found = log.slice(result.physical_offset, result.size)
        assert found is not None
        assert len(found) == result.size
    end, last = log.end, put[-1]
    assert log.slice(last.physical_offset, last.size + 1) is None
    assert log.slice(end, 1) is None
    assert log.slice(end - 1, 1) is not None
    assert log.slice(last.physical_offset, 0) is None
    first_stop = log.segments.segments[0].stop
    assert log.slice(first_stop - 10, 10) is not None
    assert log.slice(first_stop - 10, 11) is None


def test_a_record_says_what_the_message_said(tmp_path: Path) -> None:
    """Hosts of either kind, and the ends of every number, are read back; the two bits of the hosts are true of them."""
    store = open_store(tmp_path, evolve(SMALL, commit_log_file_size=65_536))
    for each in any_numbers():
        result = store.put(each)
        found = store._log.read(result.physical_offset)
        assert isinstance(found, Record)
        assert found.size == result.size == size_of(each), "room for several is made by it"
        assert (found.born_host, found.store_host) == (each.born_host, each.store_host)
        assert found.sys_flag & HOST_BITS == host_bits(each)
        assert found.sys_flag & ~HOST_BITS == each.sys_flag & ~HOST_BITS
        assert (found.flag, found.reconsume_times) == (each.flag, each.reconsume_times)
        assert (found.born_ms, found.prepared_offset) == (each.born_ms, each.prepared_offset)
        assert (bytes(found.body), found.topic, found.properties) == (each.body, each.topic, each.properties)


def host_bits(told: MessageToStore) -> int:
    """The bits that say how long its hosts are."""
    born = SYS_FLAG_BORN_HOST_V6 if told.born_host == HOST_V6 else 0
    return born | (SYS_FLAG_STORE_HOST_V6 if told.store_host == HOST_V6 else 0)


FILE_SIZE: Final = 4_096
TOPIC: Final = b"\x01T"


def empty_log(directory: Path) -> tuple[CommitLog, int]:
    """A log of small files, and the size of a record without a body."""
    return CommitLog(RealFiles(), str(directory), FILE_SIZE), size_of(message(body=b""))


@pytest.mark.parametrize("left", [0, 7, 8, 9])
def test_a_record_fills_a_file_but_for_the_blank_that_ends_it(tmp_path: Path, left: int) -> None:
    """Eight bytes at the end of a file are the blank's own: with fewer left a record begins the next file."""
    log, size = empty_log(tmp_path)
    assert log.append(message(body=b""), TOPIC, 0, 1) == 0
    start = log.append(message(body=bytes(FILE_SIZE - 2 * size - left)), TOPIC, 1, 2)
    fits = left >= 8
    assert (start, log.end) == ((size, FILE_SIZE - left) if fits else (FILE_SIZE, 2 * FILE_SIZE - size - left))
    following = log.append(message(body=b""), TOPIC, 2, 3)
    assert following == (FILE_SIZE if fits else 2 * FILE_SIZE)

    assert log.read(FILE_SIZE - left if fits else size) == FILE_SIZE
    assert isinstance(log.read(start), Record)
    assert isinstance(log.read(following), Record)
    assert log.read(log.end) is None


def test_a_record_that_no_file_can_hold_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    """The largest that fits is stored, in a file of its own."""
    log, size = empty_log(tmp_path)
    log.append(message(body=b""), TOPIC, 0, 1)
    largest = FILE_SIZE - size - 8
    with pytest.raises(MessageRefusedError, match="cannot hold it"):
        log.append(message(body=bytes(largest + 1)), TOPIC, 1, 2)
    assert (log.end, len(log.segments.segments)) == (size, 1)
    assert log.append(message(body=bytes(largest)), TOPIC, 1, 2) == FILE_SIZE
    assert (log.end, log.sure_end) == (2 * FILE_SIZE - 8, 2 * FILE_SIZE - 8)


def test_a_number_that_no_field_holds_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    """A queue id of 33 bits; the next message stands where it would have."""
    log, _ = empty_log(tmp_path)
    with pytest.raises(MessageRefusedError, match="a number of the message does not fit the record"):
        log.append(message(queue_id=1 << 32), TOPIC, 0, 1)
    assert log.append(message(), TOPIC, 0, 1) == 0


def test_a_log_that_was_taken_back_goes_on_in_the_file_of_its_end(tmp_path: Path) -> None:
    """Recovery forgets a file: nothing is written to that one any more."""
    log, size = empty_log(tmp_path)
    for number in range(3):
        log.append(message(body=bytes(900)), TOPIC, number, 1)
    log.append(message(body=bytes(2_000)), TOPIC, 3, 1)
    assert len(log.segments.segments) == 2
    log.stand_at(size + 900)
    assert log.sure_end == log.end == size + 900
    # It fills that file but for its blank, to the byte.
    assert log.append(message(body=bytes(FILE_SIZE - 8 - (size + 900) - size)), TOPIC, 1, 1) == size + 900
    assert isinstance(log.read(size + 900), Record)
    assert (log.end, len(log.segments.segments)) == (FILE_SIZE - 8, 1)


def test_room_for_several_is_in_one_file(tmp_path: Path) -> None:
    """What was made room for begins where it can be written in a row, and no blank comes between."""
    log, size = empty_log(tmp_path)
    log.append(message(body=bytes(FILE_SIZE - 3 * size - 8)), TOPIC, 0, 1)
    end = log.end
    log.make_room(2 * size)
    assert log.end == end
    assert log.sure_end >= end + 2 * size
    log.make_room(2 * size + 1)
    assert log.end == FILE_SIZE
    log.append_records([encode_record(message(body=b""), TOPIC, n, FILE_SIZE + n * size, 2) for n in range(2)])
    assert log.end == FILE_SIZE + 2 * size
    assert all(isinstance(log.read(FILE_SIZE + n * size), Record) for n in range(2))


def test_a_blank_of_another_size_is_damage(tmp_path: Path) -> None:
    """Whoever believed it would read on in the middle of a file."""
    log, size = empty_log(tmp_path)
    log.append(message(body=b""), TOPIC, 0, 1)
    log.append(message(body=bytes(FILE_SIZE - size - 8)), TOPIC, 1, 2)
    assert log.read(size) == FILE_SIZE
    log.segments.segments[0].view[size : size + 4] = (FILE_SIZE - size - 1).to_bytes(4, "big")
    rest = FILE_SIZE - size
    assert log.read(size) == Damage(0, f"blank of {rest - 1} bytes", f"a blank of {rest} bytes")


def test_what_is_flushed_is_told_and_not_flushed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the end; where recovery takes the end back, no further than that."""
    log, size = empty_log(tmp_path)
    flushed: list[tuple[int, int]] = []
    monkeypatch.setattr(SegmentList, "flush", lambda _segments, start, end: flushed.append((start, end)))
    assert log.flush() == 0
    for number in range(2):
        log.append(message(body=b""), TOPIC, number, 1)
        assert (log.flush(), log.flush()) == ((number + 1) * size, (number + 1) * size)
    assert flushed == [(0, size), (size, 2 * size)]
    log.stand_at(size)
    assert (log.end, log.flushed_end, log.flush()) == (size, size, size)
    assert log.append(message(body=b""), TOPIC, 1, 1) == size


def test_a_blank_is_written_where_the_disk_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks are taken before it is written: a full disk is an error of the append, not the end of the process."""
    monkeypatch.setattr(segment, "RESERVE_SIZE", 0)
    log, size = empty_log(tmp_path)
    log.append(message(body=b""), TOPIC, 0, 1)
    first = log.segments.segments[0]
    log.append(message(body=bytes(FILE_SIZE - size - 8)), TOPIC, 1, 2)
    assert first.reserved_end == size + 8


def test_what_is_too_short_for_anything_is_damage(tmp_path: Path) -> None:
    """The last bytes of a file, which not even a blank has room in."""
    log, size = empty_log(tmp_path)
    for number in range(2):
        log.append(message(body=bytes(FILE_SIZE - size - 8)), TOPIC, number, 1)
    assert [isinstance(log.read(FILE_SIZE - left), Damage) for left in (1, 4, 7)] == [True] * 3
    assert log.read(FILE_SIZE - 8) == FILE_SIZE


def test_where_the_next_file_begins(tmp_path: Path) -> None:
    """From the first byte of a file, from one in it and from its last."""
    store = open_store(tmp_path)
    size = SMALL.commit_log_file_size
    assert [store._log.next_file(each) for each in (0, 1, size - 1, size, size + 1)] == [size] * 3 + [2 * size] * 2


# -- what was written by another process, or by another log ----------------------------------------------------------


def filled(directory: Path) -> CommitLog:
    """A log of two files that are full, but for their blanks, and a third with one record."""
    log, size = empty_log(directory)
    for number in range(2):
        log.append(message(body=bytes([number + 1]) * (FILE_SIZE - size - 40)), TOPIC, number, 1)
    log.append(message(body=b"3"), TOPIC, 2, 1)
    assert (len(log.segments.segments), log.end) == (3, 2 * FILE_SIZE + size + 1)
    return log


@pytest.mark.parametrize(
    ("start", "end", "written"),
    [
        (0, None, [(0, FILE_SIZE), (0, FILE_SIZE), (0, -1)]),
        (FILE_SIZE - 1, None, [(FILE_SIZE - 1, FILE_SIZE), (0, FILE_SIZE), (0, -1)]),
        (FILE_SIZE, None, [(0, FILE_SIZE), (0, -1)]),
        (2 * FILE_SIZE + 9, None, [(9, -1)]),
        (FILE_SIZE + 9, 2 * FILE_SIZE, [(9, FILE_SIZE)]),
        (0, FILE_SIZE + 1, [(0, FILE_SIZE), (0, 1)]),
    ],
)
def test_what_another_process_left_unsynced_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int, end: int | None, written: list[tuple[int, int]]
) -> None:
    """In every file from there to the log's end, and nothing outside."""
    log = filled(tmp_path)
    last = log.end - 2 * FILE_SIZE
    log.end = log.end if end is None else end
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(RealMappedFile, "write_anew", lambda _file, *part: seen.append(part))
    log.write_anew(start)
    assert seen == [(first, last if stop < 0 else stop) for first, stop in written]


def test_nothing_is_appended_to_a_file_that_is_not_where_it_was(tmp_path: Path) -> None:
    """The last one; what is older is written to no more. Nor is anything after a sync that failed."""
    CommitLog(RealFiles(), str(tmp_path / "none"), FILE_SIZE).check_names()
    log = filled(tmp_path)
    log.check_names()
    first, *_rest, last = (Path(each.path) for each in log.segments.segments)
    first.rename(tmp_path / "first")
    log.check_names()
    last.rename(tmp_path / "last")
    with pytest.raises(FileNotFoundError):
        log.check_names()
    (tmp_path / "last").rename(last)
    log.check_names()
    log.segments.segments[0].failed = OSError(errno.EIO, "Input/output error")
    with pytest.raises(SyncFailedError, match=re.escape("an earlier sync failed (Input/output error)")) as raised:
        log.check_names()
    assert raised.value.filename == str(tmp_path)


def test_what_is_copied_is_the_other_log_to_the_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stands in its blanks; a file follows each of those at once, and its blocks are taken before."""
    monkeypatch.setattr(segment, "RESERVE_SIZE", 0)
    log = filled(tmp_path / "one")
    # A log that another program has written: nobody says that the rest of a blank is zeros.
    blanks = [each.view for each in log.segments.segments[:2]]
    for view in blanks:
        view[FILE_SIZE - 32 :] = bytes(range(100, 132))
    copy, size = empty_log(tmp_path / "other")
    for start, view in enumerate(blanks):
        copy.append_copy(view[: FILE_SIZE - 40])
        assert (copy.end, len(copy.segments.segments)) == ((start + 1) * FILE_SIZE - 40, start + 1)
        copy.append_blank(view[FILE_SIZE - 40 :])
        assert (copy.end, len(copy.segments.segments)) == ((start + 1) * FILE_SIZE, start + 2)
        assert copy.segments.segments[start].reserved_end == FILE_SIZE
        assert copy.sure_end == copy.end, "what is appended next goes to the file that follows"
    copy.append_copy(log.segments.segments[2].view[: size + 1])
    assert copy.end == log.end
    for one, other in zip(log.segments.segments, copy.segments.segments, strict=True):
        assert bytes(one.view) == bytes(other.view)


def test_a_log_without_files_begins_where_a_file_of_the_other_does(tmp_path: Path) -> None:
    """Be it with a blank alone."""
    log, size = empty_log(tmp_path)
    log.begin_at(3 * FILE_SIZE)
    assert (log.end, log.flushed_end, log.flush()) == (3 * FILE_SIZE,) * 3
    blank = SIZE_AND_MAGIC.pack(FILE_SIZE, MAGIC_BLANK) + bytes([7]) * (FILE_SIZE - 8)
    log.append_blank(blank)
    assert (log.start, log.end, len(log.segments.segments)) == (3 * FILE_SIZE, 4 * FILE_SIZE, 2)
    assert bytes(log.segments.segments[0].view) == blank
    assert log.append(message(body=b""), TOPIC, 0, 1) == 4 * FILE_SIZE
    assert log.end == 4 * FILE_SIZE + size
