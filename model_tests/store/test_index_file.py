"""One file of the index by itself: its header, its bounds, its disk blocks, and what an entry says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from longpoll_broker.store.index.index_file import (
    ENTRY,
    ENTRY_SIZE,
    HEADER,
    HEADER_SIZE,
    SLOT,
    IndexFile,
    IndexHeader,
    index_file_size,
    read_header,
)
from longpoll_runtime import Files

PIECE = 64 * 1024
SLOTS = 3


class Mapped:
    """A file in memory that notes which bytes got disk blocks."""

    def __init__(self, size: int) -> None:
        self.view = memoryview(bytearray(size))
        self.reserved: list[tuple[int, int]] = []
        self.room = 1 << 40

    def reserve(self, start: int, stop: int) -> None:
        """Take blocks, if there are any."""
        if stop > self.room:
            raise OSError(28, "No space left on device")
        self.reserved.append((start, stop))


def made(entry_count: int = 5, slot_count: int = SLOTS, mapped: Mapped | None = None) -> tuple[IndexFile, Mapped]:
    """A file, new or of these bytes."""
    found = Mapped(index_file_size(slot_count, entry_count)) if mapped is None else mapped
    files = cast("Files", SimpleNamespace(map=lambda *_path, **_how: found))
    return IndexFile(files, "index/1", slot_count, entry_count), found


def entry(mapped: Mapped, number: int, slot_count: int = SLOTS) -> tuple[Any, ...]:
    """Hash, physical offset, seconds and the entry before."""
    return ENTRY.unpack_from(mapped.view, HEADER_SIZE + SLOT.size * slot_count + ENTRY_SIZE * number)


@pytest.mark.parametrize(("entry_next", "counts_as"), [(-1, 1), (0, 1), (1, 1), (2, 2)])
def test_a_header_says_where_the_next_entry_goes(entry_next: int, counts_as: int) -> None:
    """At 1, in a file that says less; everything else is as it stands there."""
    content = bytearray(HEADER_SIZE)
    HEADER.pack_into(content, 0, 11, 12, 13, 14, 15, entry_next)
    assert read_header(memoryview(content)) == IndexHeader(11, 12, 13, 14, 15, counts_as)


@pytest.mark.parametrize(
    ("slots_used", "entry_next", "is_plausible"),
    [(0, 1, True), (SLOTS, 5, True), (0, 6, False), (SLOTS + 1, 5, False), (-1, 1, False), (0, 5, True)],
)
def test_a_header_that_leads_out_of_the_file_is_none(slots_used: int, entry_next: int, is_plausible: bool) -> None:
    """No more slots are in use than there are, and no entry is behind the last."""
    mapped = Mapped(index_file_size(SLOTS, 5))
    HEADER.pack_into(mapped.view, 0, 1, 1, 1, 1, slots_used, entry_next)
    file, _mapped = made(mapped=mapped)
    assert file.is_plausible is is_plausible
    assert file.is_full is (entry_next >= 5)


def test_an_entry_says_when_and_which_one_was_before_it() -> None:
    """Seconds count from the first message, none below 0 and none that does not fit; the first one's own are 0."""
    file, mapped = made(entry_count=8)
    times = [5_000, 7_999, 4_000, 5_000 + 1000 * (2**31 - 1), 5_000 + 1000 * 2**31]
    entries = [(7 + SLOTS * (number == 4), 100 + number, at) for number, at in enumerate(times)]
    assert file.put(entries[:1]) == 1
    assert file.put(entries[1:]) == 4
    assert [entry(mapped, number) for number in range(1, 6)] == [
        (7, 100, 0, 0),
        (7, 101, 2, 1),
        (7, 102, 0, 2),
        (7, 103, 2**31 - 1, 3),
        (10, 104, 2**31 - 1, 4),
    ]
    header = IndexHeader(5_000, times[-1], 100, 104, 1, 6)
    assert file.header == read_header(mapped.view) == header
    assert list(file.find(7, 5_000, 8_000)) == [None, None, 102, 101, 100]


def test_a_slot_that_leads_nowhere_counts_as_unused() -> None:
    """One below 1, or above the entry that is added: a damaged file leads into no circle."""
    for wrong, is_kept in ((-1, False), (0, False), (1, True), (2, True), (3, False)):
        file, mapped = made()
        file.put([(0, 100, 1_000), (1, 101, 1_000)][:1])
        SLOT.pack_into(mapped.view, HEADER_SIZE + SLOT.size * 2, wrong)
        file.put([(2, 102, 1_000)])
        assert entry(mapped, 2)[3] == (wrong if is_kept else 0)
        assert file.header.slot_count == 1 + (not is_kept)


def test_a_file_takes_as_many_as_fit() -> None:
    """Place 0 is never used."""
    file, mapped = made(entry_count=4)
    assert file.put([(0, 100 + number, 1_000) for number in range(9)]) == 3
    assert file.is_full
    assert entry(mapped, 0) == (0, 0, 0, 0)
    assert entry(mapped, 3) == (0, 102, 0, 2)


def test_a_file_begins_where_the_one_before_ended() -> None:
    """In time and place, with nothing in it; its first entry counts from there, and is what it then begins with."""
    before, _mapped = made()
    before.put([(0, 100, 1_000), (0, 200, 4_000)])
    file, mapped = made()
    file.begin_after(before)
    assert mapped.reserved == [(0, index_file_size(SLOTS, 5))]
    assert file.header == read_header(mapped.view) == IndexHeader(4_000, 4_000, 200, 200, 0, 1)
    file.put([(0, 300, 6_000), (0, 400, 9_000)])
    assert [entry(mapped, number)[2] for number in (1, 2)] == [2, 3]
    assert file.header == IndexHeader(6_000, 9_000, 300, 400, 1, 3)


def test_disk_blocks_are_taken_before_what_is_written_there_and_once() -> None:
    """A piece of 64 KiB at a time; of header, slot and entry, also where an entry lies across two pieces."""
    slot_count = 3 * PIECE // SLOT.size
    file, mapped = made(entry_count=10_000, slot_count=slot_count)
    file.put([(2 * PIECE // SLOT.size, 100, 1_000)])
    assert mapped.reserved == [(0, PIECE), (3 * PIECE, 4 * PIECE), (2 * PIECE, 3 * PIECE)]
    start = HEADER_SIZE + SLOT.size * slot_count
    across = (4 * PIECE - start) // ENTRY_SIZE
    assert start + ENTRY_SIZE * across < 4 * PIECE < start + ENTRY_SIZE * (across + 1)
    file.put([(0, 101, 1_000)] * (across - 2))
    assert len(mapped.reserved) == 3
    file.put([(0, 102, 1_000)])
    assert mapped.reserved[3:] == [(4 * PIECE, min(5 * PIECE, index_file_size(slot_count, 10_000)))]
    assert file.header.entry_next == across + 1
    mapped.room = 0
    assert file.put([(0, 103, 1_000)]) == 1, "what has blocks needs none"
    with pytest.raises(OSError, match="No space"):
        file.put([(PIECE // SLOT.size, 104, 1_000)])
    assert file.header.entry_next == across + 2


@pytest.mark.parametrize(
    ("begin_ms", "end_ms", "overlaps"),
    [
        (0, 9, False),
        (0, 10, True),
        (0, 15, True),
        (10, 10, True),
        (20, 99, True),
        (21, 99, False),
        (9, 21, True),
        (12, 13, True),
        (10, 21, True),
        (9, 20, True),
    ],
)
def test_times_overlap_that_share_a_moment(begin_ms: int, end_ms: int, overlaps: bool) -> None:
    """The first and the last one count."""
    mapped = Mapped(index_file_size(SLOTS, 5))
    HEADER.pack_into(mapped.view, 0, 10, 20, 0, 0, 0, 1)
    assert made(mapped=mapped)[0].overlaps(begin_ms, end_ms) is overlaps


@pytest.mark.parametrize(("slot", "found"), [(-1, []), (0, []), (1, [100]), (2, [101, 100]), (3, []), (4, [])])
def test_a_search_begins_at_an_entry_that_there_is(slot: int, found: list[int]) -> None:
    """Wherever a damaged slot leads, and ends where an entry leads to none before it."""
    file, mapped = made()
    file.put([(0, 100, 1_000), (0, 101, 1_000)])
    SLOT.pack_into(mapped.view, HEADER_SIZE, slot)
    assert list(file.find(0, 0, 9_999)) == found
    for before in (-1, 0, 2, 3):
        ENTRY.pack_into(mapped.view, HEADER_SIZE + SLOT.size * SLOTS + ENTRY_SIZE * 2, 0, 101, 0, before)
        SLOT.pack_into(mapped.view, HEADER_SIZE, 2)
        assert list(file.find(0, 0, 9_999)) == [101]
    ENTRY.pack_into(mapped.view, HEADER_SIZE + SLOT.size * SLOTS + ENTRY_SIZE * 2, 0, 101, -1, 1)
    assert list(file.find(0, 0, 9_999)) == [], "seconds below 0 are nobody's"


def test_a_search_ends_before_what_is_older_than_asked_for() -> None:
    """What is older still is not looked at, and what is as old is given."""
    file, _mapped = made(entry_count=9)
    file.put([(0, 100 + number, 1_000 * number) for number in range(1, 6)])
    assert list(file.find(0, 3_000, 4_000)) == [None, 104, 103, None]
    assert list(file.find(SLOTS, 3_000, 4_000)) == [None, None, None, None]


def test_a_sync_that_failed_is_for_ever() -> None:
    """All of the file is synced; after a failure none is tried, for it would succeed with nothing on the disk."""
    file, mapped = made()
    synced: list[tuple[int, int]] = []
    holder = cast("Any", mapped)
    holder.sync = lambda start, stop: synced.append((start, stop))
    file.flush()
    assert synced == [(0, index_file_size(SLOTS, 5))]

    def fails(_start: int, _stop: int) -> None:
        synced.append((-1, -1))
        raise OSError(5, "Input/output error")

    holder.sync = fails
    with pytest.raises(OSError, match="Input/output error"):
        file.flush()
    holder.sync = lambda start, stop: synced.append((start, stop))
    with pytest.raises(OSError, match="index/1"):
        file.flush()
    assert synced == [(0, index_file_size(SLOTS, 5)), (-1, -1)]


def test_a_closed_file_is_not_mapped() -> None:
    """Once."""
    file, mapped = made()
    closed: list[str] = []
    cast("Any", mapped).close = lambda: closed.append("closed")
    file.close()
    assert closed == ["closed"]
