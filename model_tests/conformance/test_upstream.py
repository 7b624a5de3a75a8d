"""The reports about the Rust broker: their bytes say what stands beside them, and are answered as the reports tell."""

from __future__ import annotations

import json
import re
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import frozen
from model_tests.conformance import java_broker, rust_broker
from model_tests.conformance.java_broker import JavaUnavailableError, resolve
from model_tests.conformance.rust_broker import RustUnavailableError, built

from longpoll_conform.capabilities import is_well
from longpoll_conform.line import Address
from longpoll_conform.play import Place
from longpoll_conform.started import Started
from longpoll_conform.wire import decode_command, read_records

UPSTREAM: Final = Path(__file__).parents[2] / "docs" / "upstream"
REPORTS: Final = sorted(path.stem for path in UPSTREAM.glob("rocketmq-rust-*.md"))
BLOCK: Final = re.compile(r"^```text replay\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAME: Final = ("language", "version", "opaque", "flag", "serializeTypeCurrentRPC")
"""What a report leaves out of a header, where all have the same."""
ANSWER_S: Final = 10.0
LATE_S: Final = 20.0
"""How long a request is asked again until it is answered as told: a message may take a moment to be there."""


@frozen
class Asked:
    """One request of a report."""

    says: Mapping[str, Any]
    frame: bytes
    told: Mapping[str, Mapping[str, Any]]
    """What `rust` and `java` answer."""


def requests_of(report: str) -> Sequence[Asked]:
    """The requests of a report, in their order."""
    (block,) = BLOCK.findall((UPSTREAM / f"{report}.md").read_text(encoding="utf-8"))
    return [_asked(part) for part in re.split(r"^send ", block, flags=re.MULTILINE)[1:]]


def _asked(text: str) -> Asked:
    said, told, frame, of_request = "", {}, "", True
    for line in text.splitlines():
        if not said:
            said = line
        elif line.startswith(("both ", "rust ", "java ")):
            of_request = False
            who, summary = line.split(maxsplit=1)
            told.update(dict.fromkeys(("rust", "java") if who == "both" else (who,), json.loads(summary)))
        elif of_request and not line.lstrip().startswith("body "):
            frame += line
    return Asked(json.loads(said), bytes.fromhex(frame), told)


def summary(asked: Asked, answer: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What a report tells of an answer; None for a connection that was closed."""
    if answer is None:
        return {"closed": True}
    found: dict[str, Any] = {"code": answer["code"]}
    fields = answer["extFields"] or {}
    if "nextBeginOffset" in fields and answer["code"] != 19:
        found["nextBeginOffset"] = fields["nextBeginOffset"]
    if asked.says["code"] in {11, 12} and answer["code"] == 0:
        found["properties"] = [sorted(each["properties"]) for each in read_records(answer["body"])]
    if asked.says["code"] == 41 and answer["code"] == 0:
        found["body"] = sorted(json.loads(answer["body"]))
    return found


def test_there_are_reports() -> None:
    """Each is on the page that lists them, and each has a request that the two brokers answer otherwise."""
    listed = re.findall(r"\((rocketmq-rust-[a-z-]+)\.md\)", (UPSTREAM / "README.md").read_text(encoding="utf-8"))

    assert sorted(set(listed)) == REPORTS
    for report in REPORTS:
        assert any(asked.told["rust"] != asked.told["java"] for asked in requests_of(report)), report


@pytest.mark.parametrize("report", REPORTS)
def test_the_bytes_of_a_report_are_what_it_says(report: str) -> None:
    """Each header is as it is written beside its bytes."""
    for asked in requests_of(report):
        size = int.from_bytes(asked.frame[5:8])
        header = json.loads(asked.frame[8 : 8 + size])
        assert int.from_bytes(asked.frame[:4]) == len(asked.frame) - 4
        assert {name: value for name, value in header.items() if name in asked.says} == asked.says
        assert set(header) - set(asked.says) <= set(SAME)


@contextmanager
def broker_of(who: str, directory: Path) -> Iterator[Address]:
    """A fresh broker, the Rust one or the Java one; skips where it cannot be had."""
    if who == "java":
        try:
            class_path = resolve(directory, "5.5.0")
        except JavaUnavailableError as error:
            pytest.skip(str(error))
        with java_broker.running(class_path, directory / "home") as java:
            yield java.address
        return
    try:
        programs = built()
    except RustUnavailableError as error:
        pytest.skip(f"THE RUST BROKER IS NOT TRIED: {error}")
    with rust_broker.running(programs, directory / "home") as rust:
        place = Place(rust.address, rust.name_server)
        with Started(rust.start, lambda: is_well(place, "upstream")):
            yield rust.address


class Talk:
    """A connection on which frames are sent as they are; a new one where the broker closed it."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._socket = socket.create_connection(address, ANSWER_S)

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def told(self, asked: Asked, expected: Mapping[str, Any]) -> Mapping[str, Any]:
        """What is told of the answer: the first that is as expected, or the last within some seconds."""
        end_s = time.monotonic() + LATE_S
        while True:
            self._socket.sendall(asked.frame)
            answer = self._answer()
            if answer is None:
                self.close()
                self._socket = socket.create_connection(self._address, ANSWER_S)
            told = summary(asked, answer)
            if told == expected or time.monotonic() > end_s:
                return told

    def _answer(self) -> Mapping[str, Any] | None:
        """The next answer, requests of the broker's own left out; None where it closed the connection."""
        while True:
            head = self._read(4)
            frame = self._read(struct.unpack(">i", head)[0]) if head else b""
            if not frame:
                return None
            command = decode_command(frame)
            if command["flag"] & 1:
                return command

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            try:
                part = self._socket.recv(size - len(found))
            except ConnectionError:
                return b""
            if not part:
                return b""
            found += part
        return found


@pytest.mark.peers
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("who", ["rust", "java"])
def test_a_broker_answers_as_the_reports_tell(who: str, tmp_path: Path) -> None:
    """Every request of every report, over one connection for each report, and a new one where it was closed."""
    answered = {}
    with broker_of(who, tmp_path) as address:
        for report in REPORTS:
            with closing(Talk(address)) as talk:
                for number, asked in enumerate(requests_of(report)):
                    told = talk.told(asked, asked.told[who])
                    if told != asked.told[who]:
                        answered[report, number] = told

    assert answered == {}
