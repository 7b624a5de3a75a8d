"""The messages of a pull's answer: the quick way to read a record against the plain one."""

from __future__ import annotations

import zlib
from types import SimpleNamespace
from unittest.mock import patch

from hypothesis import example, given
from hypothesis import strategies as st

from longpoll_broker.store.log.commit_log import encode_record
from longpoll_broker.store.messages import MessageToStore
from longpoll_client import messages
from longpoll_client.messages import decode_readable, read_plain
from longpoll_protocol.log_record import host_bytes

HOSTS = st.sampled_from([host_bytes("127.0.0.1", 10911), host_bytes("::1", 70)])
INT32 = st.integers(-(2**31), 2**31 - 1)
PROPERTIES = st.sampled_from(
    [b"", b"UNIQ_KEY\x01AB\x02", b"TAGS\x01t\x02KEYS\x01k", b"\xff\x01\x02", b"UNIQ_KEY\x01\x02"]
)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """One record of any kind."""
    message = MessageToStore(
        "T",
        draw(INT32),
        draw(st.binary(max_size=9)),
        draw(PROPERTIES),
        0,
        draw(st.integers(-(2**63), 2**63 - 1)),
        draw(HOSTS),
        draw(HOSTS),
        draw(INT32),
        draw(st.sampled_from([0, 1, 4, 8])),
        draw(INT32),
    )
    topic = draw(st.sampled_from([b"T", "\u00e9\u4e2d".encode(), b"\xff", b"", b"t" * 127]))
    return encode_record(
        message, bytes((len(topic),)) + topic, draw(st.integers(0, 2**40)), draw(st.integers(0, 2**40)), 7
    )


def told(body: bytes) -> tuple[object, str]:
    """The messages before the first that cannot be read, and what is wrong with that one."""
    found, error = decode_readable(body)
    return found, str(error)


def plainly(body: bytes) -> tuple[object, str]:
    """The same without the quick way."""
    with patch.object(messages, "read_plain", lambda *_where: None):
        return told(body)


WHOLE = encode_record(
    MessageToStore(
        "T", 1, b"body", b"UNIQ_KEY\x01AB\x02", 0, 5, host_bytes("127.0.0.1", 1), host_bytes("127.0.0.1", 2)
    ),
    b"\x01T",
    41,
    1000,
    6,
)


@given(st.lists(records(), max_size=3), st.integers(0, 400), st.binary(max_size=3), st.integers(0, 2))
@example([WHOLE], 84, b"\xff\xff\xff", 3)
@example([WHOLE], 0, b"\xff", 1)
@example([WHOLE], len(WHOLE) - 11, b"\x7f", 1)
def test_both_ways_read_the_same(bodies: list[bytes], at: int, content: bytes, size: int) -> None:
    """Whatever the records, and wherever they are damaged or cut."""
    whole = b"".join(bodies)
    spoiled = whole[:at] + content + whole[at + size :]

    assert told(whole) == plainly(whole)
    assert told(spoiled) == plainly(spoiled)


def test_what_nearly_every_record_is_goes_the_quick_way() -> None:
    """And a damaged body, a packed one, and half a record do not."""
    twice = WHOLE * 2
    quick = read_plain(twice, len(WHOLE), {})

    assert quick is not None
    assert (quick[0].msg_id, quick[0].body, quick[1]) == ("AB", b"body", len(twice))
    assert read_plain(WHOLE.replace(b"body", b"bodY"), 0, {}) is None
    assert read_plain(twice[:-1], len(WHOLE), {}) is None


def test_planted_a_body_that_nobody_checks_is_seen() -> None:
    """With the checksum of any body taken for right, the two ways differ."""
    spoiled = WHOLE.replace(b"body", b"bodY")
    expected = plainly(spoiled)
    right = zlib.crc32(b"body")
    with patch.object(messages, "zlib", SimpleNamespace(crc32=lambda _body: right)):
        assert told(spoiled) != expected
