"""What a record in the log holds, whatever numbers its sender gave."""

from __future__ import annotations

import itertools
import pathlib

import pytest
from attrs import evolve
from msgspec import structs

from longpoll_broker.store.log import commit_log
from longpoll_broker.store.messages import MessageToStore
from longpoll_broker.store.verify import verify
from longpoll_broker.testing.stores import HOST, HOST_V6, SMALL, message, open_store, put_and_dispatch
from longpoll_runtime.files import RealFiles


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


def found_by_verify(directory: pathlib.Path) -> list[str]:
    """What a store of such messages looks like."""
    store = open_store(directory, evolve(SMALL, commit_log_file_size=65_536))
    put_and_dispatch(store, any_numbers())
    store.close()
    return [problem.found for problem in verify(RealFiles(), str(directory)).problems]


def test_no_number_of_a_sender_makes_a_record_unreadable(tmp_path: pathlib.Path) -> None:
    """The bits that say how long the hosts are are the store's own: believed, they would end the log for everybody."""
    assert found_by_verify(tmp_path) == []


def test_planted_bits_that_are_believed_are_seen(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sender's record and what it does to those behind it."""
    monkeypatch.setattr(commit_log, "HOST_BITS", 0)

    assert found_by_verify(tmp_path)


def test_no_slice_reaches_past_the_end(tmp_path: pathlib.Path) -> None:
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
    store.close()
