"""Every field of every request at each edge of its numbers, what one stores read by the next, with a restart between.

Nothing may be raised that is no answer of its own: no traceback in the log, no thread that ends, nobody unheard.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from model_tests.service.fuzzing import SEEDS

from longpoll_broker.broker import Broker
from longpoll_broker.testing.brokers import SMALL_STORE
from longpoll_broker.testing.raw_client import RawClient, send_message
from longpoll_protocol.codes import RequestCode
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import PRESETS, preset
from longpoll_spec.testing.cases import quick_if

EDGES: Final = (
    None, "", "0", "-1", "1", "32767", "32768", "2147483647", "2147483648", "-2147483648", "-2147483649",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "9" * 40, "x", "1.5",
)  # fmt: skip
"""The values of a field; None leaves it out."""
TIMES: Final = "j"
"""A send's count of tries, which a send-back adds to."""
LEVELS: Final = ("0", "-1", "2147483647", "-2147483648")
LIVES: Final = 2


class Raised(logging.Handler):
    """What was logged with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.seen.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def watching() -> Iterator[list[str]]:
    """What is raised within the block, on any thread."""
    handler = Raised()
    logging.getLogger().addHandler(handler)
    try:
        yield handler.seen
    finally:
        logging.getLogger().removeHandler(handler)


def requests() -> Iterator[tuple[int, dict[str, str], bytes]]:
    """Each request with each field at each edge; pulls are not held."""
    for code, fields, body in SEEDS:
        for name in fields:
            for edge in EDGES:
                changed = {key: value for key, value in fields.items() if key != name}
                if "suspendTimeoutMillis" in fields and name != "sysFlag":
                    changed["sysFlag"] = "4"
                if edge is not None:
                    changed[name] = edge
                yield code, changed, body


def send_back(client: RawClient, offset: int) -> None:
    """Send a stored message back with each edge of a level and of the tries allowed."""
    for allowed in (None, "0", "2147483647", "-2147483648"):
        for level in LEVELS:
            fields = {"offset": str(offset), "group": "FG0", "delayLevel": level}
            client.call(
                RequestCode.CONSUMER_SEND_MSG_BACK,
                fields if allowed is None else fields | {"maxReconsumeTimes": allowed},
            )


def sweep(broker: Broker) -> int:
    """Send everything, and send every stored message's edges back; how many were answered."""
    answered = 0
    with RawClient(broker.address) as client:
        for topic in ("F0", "F1", "F2"):
            fields = {"topic": topic, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
            client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        for code, fields, body in requests():
            if code == RequestCode.END_TRANSACTION or fields.get("sysFlag") not in {None, "4"}:
                # Such a request need not be answered; the next one's answer shows that it was served.
                client.send(code, fields, body)
                continue
            reply = client.call(code, fields, body)
            answered += 1
            stored = reply.ext_fields or {}
            if code == RequestCode.SEND_MESSAGE_V2 and fields.get(TIMES, "0") != "0" and "msgId" in stored:
                send_back(client, int(stored["msgId"][16:], 16))
    return answered


@pytest.mark.parametrize("policy", quick_if(PRESETS, lambda name: name == "strict"))
def test_no_edge_of_any_field_raises(tmp_path: Path, policy: str) -> None:
    """Under each policy; the second life begins with what the first has stored."""
    with watching() as raised:
        for _life in range(LIVES):
            with Broker.start(
                RealRuntime(), str(tmp_path / "store"), policy=preset(policy), store_config=SMALL_STORE
            ) as broker:
                assert sweep(broker) > 1000
                with RawClient(broker.address) as stranger, RawClient(broker.name_server_address) as names:
                    assert send_message(stranger, "F0") >= 0
                    assert names.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "F0"}).code == 0
    assert raised == []


def test_planted_tries_that_do_not_go_round_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "longpoll_broker.service.send.send_back_processor.as_int32", lambda value: 1 // (value < 2**31) and value
    )
    with watching() as raised, Broker.start(RealRuntime(), str(tmp_path / "store"), store_config=SMALL_STORE) as broker:
        sweep(broker)
    assert any("ZeroDivisionError" in line for line in raised)
