"""The short way to a pull's answer against the common one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll_broker.core.read import GetStatus
from longpoll_protocol.errors import LocalProtocolError
from longpoll_protocol.fast.pull_answer import encode_pull_head, pull_heads
from longpoll_protocol.frames.command import Command, encode_head
from longpoll_protocol.frames.frame import FRAME_SIZE_MAX

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


def _commonly(numbers: tuple[int, int, int], status: str, offsets: tuple[int, int, int], body_size: int) -> bytes:
    names = ("nextBeginOffset", "minOffset", "maxOffset")
    fields = {"suggestWhichBrokerId": "0"} | {name: str(offset) for name, offset in zip(names, offsets, strict=True)}
    return encode_head(Command(*numbers, fields, remark=status), body_size)


@given(
    st.tuples(INT32, INT32, INT32), st.sampled_from(GetStatus), st.tuples(INT64, INT64, INT64), st.integers(0, 2**20)
)
def test_both_ways_write_the_same_bytes(
    numbers: tuple[int, int, int], status: GetStatus, offsets: tuple[int, int, int], body_size: int
) -> None:
    """Whatever the numbers are."""
    expected = _commonly(numbers, status.name, offsets, body_size)

    assert expected == encode_pull_head(*numbers, status.name, *offsets, body_size)


@given(
    st.tuples(INT32, INT32), st.lists(INT32), st.sampled_from(GetStatus), st.tuples(INT64, INT64, INT64),
    st.integers(0, 2**20),
)  # fmt: skip
def test_heads_of_a_herd_are_those_made_one_by_one(
    numbers: tuple[int, int], opaques: list[int], status: GetStatus, offsets: tuple[int, int, int], body_size: int
) -> None:
    """Whatever the opaques are."""
    code, flag = numbers
    heads = pull_heads(code, flag, status.name, *offsets, body_size)
    expected = [encode_pull_head(code, opaque, flag, status.name, *offsets, body_size) for opaque in opaques]

    assert expected == [heads.head(opaque) for opaque in opaques]
    body = bytes(body_size % 1000)
    assert heads.frames(opaques, body) == b"".join(head + body for head in expected)


def test_a_frame_that_the_peer_would_refuse_is_not_made() -> None:
    """As by the common way."""
    with pytest.raises(LocalProtocolError, match="over the limit"):
        encode_pull_head(0, 1, 1, "FOUND", 1, 0, 1, FRAME_SIZE_MAX)
    with pytest.raises(LocalProtocolError, match="over the limit"):
        pull_heads(0, 1, "FOUND", 1, 0, 1, FRAME_SIZE_MAX)
