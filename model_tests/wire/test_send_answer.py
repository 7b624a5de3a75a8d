"""The short way to a stored message's answer against the common one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longpoll_broker.service.send.send_processor import REGION_FIELDS
from longpoll_protocol.codes import CommandFlag
from longpoll_protocol.fast.send_answer import encode_send_head
from longpoll_protocol.frames.command import Command, encode_reply_head
from longpoll_protocol.log_record import host_bytes
from longpoll_protocol.message import message_id

INT32 = st.integers(-(2**31), 2**31 - 1)
OFFSET = st.integers(0, 2**63 - 1)
RESPONSE = int(CommandFlag.RESPONSE)


def _commonly(request: Command, queue_id: int, msg_id: str, queue_offset: int) -> bytes:
    fields = REGION_FIELDS | {"queueId": str(queue_id), "msgId": msg_id, "queueOffset": str(queue_offset)}
    return encode_reply_head(request, 0, ext_fields=fields)


@given(INT32, INT32, INT32, st.sampled_from(["127.0.0.1", "2001:db8::7"]), OFFSET, OFFSET)
def test_both_ways_write_the_same_bytes(  # noqa: PLR0917 - what differs between two answers
    opaque: int, flag: int, queue_id: int, host: str, physical_offset: int, offset: int
) -> None:
    """Whatever the numbers are."""
    digits = host_bytes(host, 10911).hex().upper().encode()
    expected = _commonly(Command(310, opaque, flag), queue_id, message_id(host, 10911, physical_offset), offset)

    assert expected == encode_send_head(opaque, RESPONSE, queue_id, digits, physical_offset, offset)
