"""`docs/way-of-a-message.md` names the functions that a plain broker calls for one send and one held pull, in order."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import pytest
from model_tests.support.broker.brokers import Connect, StartBroker, wait_until
from model_tests.support.broker.raw_client import pull_fields, send_message

from longpoll_protocol.codes import RequestCode

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs/way-of-a-message.md"
PRODUCT: Final = (f"{ROOT}/reference/", f"{ROOT}/spec/")
ROW: Final = re.compile(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \|", re.MULTILINE)
FILES: Final = {"send": 40, "pull": 36, "wake": 47}
"""Product files whose functions run in the pass of a request: that wakes nobody, finds a message, wakes a pull.

The aim is 20 for a send and a pull. Lower a number when fewer files run; never raise one.
"""
Call = tuple[str, str]
"""A file below its root, and the qualified name of a function in it."""


@contextmanager
def traced() -> Iterator[list[tuple[str, CodeType]]]:
    """The calls of all threads that start in the block, each with the name of its thread."""
    calls: list[tuple[str, CodeType]] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            calls.append((threading.current_thread().name, frame.f_code))

    threading.setprofile(note)
    try:
        yield calls
    finally:
        threading.setprofile(None)


def passes_of(calls: Iterable[tuple[str, CodeType]]) -> list[list[Call]]:
    """What each pass of the loop called in product code, up to the next pass."""
    passes: list[list[Call]] = [[]]
    for thread, code in calls:
        root = next(filter(code.co_filename.startswith, PRODUCT), None)
        if thread == "io-0" and root is not None:
            if code.co_qualname == "IoLoop._run_pass":
                passes.append([])
            passes[-1].append((code.co_filename.removeprefix(root), code.co_qualname))
    return passes


@pytest.fixture
def passes(start_broker: StartBroker, connect: Connect) -> dict[str, list[Call]]:
    """The calls of four passes: a send, a pull, a pull that is held, and the send that wakes it."""
    with traced() as calls:
        broker = start_broker(is_fast=False)
        producer, consumer = connect(broker.address), connect(broker.address)
        for _ in range(2):  # The first ones make topic, group and files.
            send_message(producer, "T")
            consumer.call(RequestCode.PULL_MESSAGE, pull_fields("T", 0))
        held = consumer.send(RequestCode.PULL_MESSAGE, pull_fields("T", 2, timeout_ms=60_000))
        wait_until(lambda: len(broker.hold_service) == 1)
        send_message(producer, "T")
        assert consumer.answer(held).code == 0
        send_message(producer, "T")  # Its pass ends the one before; a stop would add to that.
        broker.stop()
    served = [
        each
        for each in passes_of(calls)
        if {"SendProcessor.receive", "PullProcessor.receive"} & {name for _, name in each}
    ]
    assert len(served) == 7
    return dict(zip(("send", "pull", "held", "wake"), served[2:6], strict=True))


def first_not_called(named: Iterable[Call], calls: Iterable[Call]) -> Call | None:
    """The first named function that is not called behind those before it."""
    left = iter(calls)
    return next((each for each in named if each not in left), None)


def test_the_page_names_what_is_called_in_its_order(passes: dict[str, list[Call]]) -> None:
    text = PAGE.read_text()
    named = [(f"longpoll_broker/{file}", name) for file, name in ROW.findall(text)]
    assert len(named) == text.count("\n| `") > 30
    assert len(re.findall(r"[^\s|]+", text)) <= 500
    assert first_not_called(named, passes["held"] + passes["wake"]) is None


def test_the_number_of_files_of_a_request_only_falls(passes: dict[str, list[Call]]) -> None:
    assert {name: len({file for file, _ in passes[name]}) for name in FILES} == FILES
