"""Play a vector to a broker: the preparation, the request, the steps while the request waits, and the final steps.

The result is the vector's case with the broker's answers, which `compare` compares with the recording.
"""

from __future__ import annotations

import base64
import copy
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from attrs import define, field

from longpoll_conform.connection import Address, Answer, Connection, Conversation, SilentError
from longpoll_conform.vectors import Vector
from longpoll_conform.wire import NotReadableError, batch_body, each_text, lenient_json, physical_offset, read_records
from longpoll_runtime.recoverable import FAULTS
from longpoll_runtime.threads import spawn

WITH_RECORDS: Final = frozenset({11, 361, 33, 12})
"""Requests whose answers contain messages."""
BYTES_KEPT: Final = 2_000
ONE_WAY: Final = 2
UNKNOWN_CODE: Final = 3
"""The answer to an unknown request code."""
PUSH_S: Final = 0.3
"""How many seconds to wait for requests from the broker if the vector's recording has requests from the broker."""
DURING_S: Final = 30.0
ANSWER_MS: Final = 10_000
LIMIT_MS: Final = 8_000
"""How many ms to wait for work that the broker does with a delay, such as making a message visible."""
LOOK_S: Final = 0.02
ROUTE_OF_TOPIC: Final = 105
NO_TOPIC: Final = 17
_VARIABLE: Final = re.compile(r"\$\{(\w+)([+-]\d+)?\}")


@define(eq=False)
class Played:
    """A vector with the answers of a broker."""

    case: dict[str, Any]
    """The vector's case with the broker's answers; `errors` lists the steps that failed."""
    conversation: Conversation
    variables: Mapping[str, str]


@define(eq=False)
class Place:
    """The address and the name of the broker under test."""

    broker: Address
    name_server: Address
    broker_name: str = "broker-a"
    cluster: str = "DefaultCluster"
    answer_ms: int = ANSWER_MS
    """How many ms to wait for an answer to a request that is not held."""

    def variables(self) -> dict[str, str]:
        """Returns the variables that vectors may use, by name."""
        address = f"{self.broker[0]}:{self.broker[1]}"
        return {"brokerName": self.broker_name, "cluster": self.cluster, "brokerAddr": address}


def play(vector: Vector, place: Place) -> Played:
    """Play a vector, and return its case with the broker's answers. Raises SilentError."""
    player = _Player(copy.deepcopy(dict(vector.case)), place)
    with ExitStack() as stack:
        stack.callback(player.hang_up)
        player.play()
    return Played(player.case, player.conversation, player.variables)


@define(eq=False)
class _Player:
    case: dict[str, Any]
    place: Place
    conversation: Conversation = field(factory=Conversation)
    variables: dict[str, str] = field(init=False)
    lines: dict[str, Connection] = field(factory=dict)
    errors: list[str] = field(factory=list)
    _asked: dict[str, tuple[Connection, int, int, float]] = field(factory=dict)
    """Open requests, by the name with which a later step waits for the answer."""
    _opening: threading.Lock = field(factory=threading.Lock)

    def __attrs_post_init__(self) -> None:
        self.variables = self.place.variables()

    def play(self) -> None:
        case = self.case
        self._try("before the request", partial(self._do_all, case.get("setup", [])))
        self._try("the request", self._request)
        self._try("after the request", partial(self._do_all, case.get("after", [])))
        if case.get("pushes") is not None:
            time.sleep(PUSH_S)
            case["pushes"] = [
                {"conn": name, "code": push["code"], "flag": push["flag"], "extFields": push.get("extFields")}
                for name in sorted(self.lines)
                for push in self.lines[name].pushes
            ]
        for line in self.lines.values():
            line.hear_out()
        self.errors += [
            f"connection {name}: request {opaque} answered once, but it was answered again"
            for name, line in self.lines.items()
            for opaque in line.answered_twice
        ]
        self.errors += [
            f"connection {name}: no unexpected answer, but one came for request {opaque}"
            for name, line in self.lines.items()
            for opaque in line.unasked
        ]
        if self.errors:
            case["errors"] = self.errors

    def hang_up(self) -> None:
        for line in self.lines.values():
            line.close()

    def _try(self, what: str, do: Callable[[], object]) -> None:
        try:
            do()
        except FAULTS as error:
            # An answer may contain anything, and an error while it is read must not end the run.
            said = (
                str(error) if isinstance(error, SilentError | NotReadableError) else f"{type(error).__name__}: {error}"
            )
            self.errors.append(f"{what}: {said}")

    def _request(self) -> None:
        case, request = self.case, self.case["request"]
        begun_s = time.monotonic()
        line, opaque = self._ask(request)
        meanwhile = spawn("conform-during", partial(self._during, begun_s))
        answer = line.wait(opaque, case.get("wait_ms", self._patience_ms(request)) / 1000)
        case["response"] = described(request["code"], answer, line)
        case["held_ms"] = round((answer.at_s - begun_s) * 1000)
        meanwhile.join(DURING_S)

    def _during(self, begun_s: float) -> None:
        for step in self.case.get("during", []):
            if "at_ms" in step:
                time.sleep(max(0.0, begun_s + step["at_ms"] / 1000 - time.monotonic()))
            self._try("while the request waits", partial(self._do, step))

    def _do_all(self, steps: Iterable[dict[str, Any]]) -> None:
        for step in steps:
            self._do(step)

    def _do(self, step: dict[str, Any]) -> None:
        if "sleep_ms" in step:
            time.sleep(step["sleep_ms"] / 1000)
        elif "close" in step:
            self.lines.pop(step["close"]).close()
        elif "until_max_offset" in step:
            self._until(step)
        elif "join" in step:
            line, opaque, code, begun_s = self._asked.pop(step["join"])
            answer = line.wait(opaque, step.get("wait_ms", 16_000) / 1000)
            step["response"] = described(code, answer, line)
            step["held_ms"] = round((answer.at_s - begun_s) * 1000)
        elif "spawn" in step:
            begun_s = time.monotonic()
            line, opaque = self._ask(step)
            self._asked[step["spawn"]] = (line, opaque, step["code"], begun_s)
        else:
            self._call(step)

    def _call(self, step: dict[str, Any]) -> None:
        is_one_way = bool(step.get("flag", 0) & ONE_WAY)
        for _ in range(step.get("times", 1)):
            line, opaque = self._ask(step)
            if is_one_way:
                continue
            answer = line.wait(opaque, step.get("wait_ms", self._patience_ms(step)) / 1000)
            answer = self._when_registered(step, answer)
            step["response"] = described(step["code"], answer, line)
            if answer.command is not None:
                for name, how in (step.get("save") or {}).items():
                    self.variables[name] = _saved(answer.command, how)
        if is_one_way:
            step["response"] = None

    def _when_registered(self, step: Mapping[str, Any], answer: Answer) -> Answer:
        """Wait for a route, because Java's broker registers a topic that a send created asynchronously."""
        end_s = time.monotonic() + step.get("limit_ms", LIMIT_MS) / 1000
        while _is_early(step, answer) and time.monotonic() < end_s:
            time.sleep(LOOK_S)
            line, opaque = self._ask(step)
            answer = line.wait(opaque, step.get("wait_ms", self._patience_ms(step)) / 1000)
        return answer

    def _until(self, step: dict[str, Any]) -> None:
        """Wait until a queue reaches an offset, because a sent message may become visible with a delay."""
        wanted = self._filled(step["until_max_offset"])
        end_s = time.monotonic() + step.get("limit_ms", LIMIT_MS) / 1000
        line = self._line("probe")
        fields = {"topic": wanted["topic"], "queueId": str(wanted["queueId"])}
        while True:
            answer = line.wait(line.ask({"code": 30, "extFields": fields}), self.place.answer_ms / 1000).command
            told = (answer or {}).get("extFields") or {}
            if answer is not None and int(told.get("offset", -1)) >= int(wanted["offset"]):
                return
            if answer is None or answer["code"] == UNKNOWN_CODE or time.monotonic() > end_s:
                step["failed"] = told
                return
            time.sleep(LOOK_S)

    def _ask(self, step: Mapping[str, Any]) -> tuple[Connection, int]:
        line = self._line(step.get("conn", "main"))
        if "raw" in step:
            line.send_bytes(base64.b64decode(step["raw"]), int(step["opaque"]))
            return line, int(step["opaque"])
        request = {name: step[name] for name in ("code", "flag", "language", "version", "remark") if name in step}
        fields = step.get("extFields")
        request["extFields"] = None if fields is None else self._filled(fields)
        request["body"] = self._body(step.get("body"))
        return line, line.ask(request, step.get("serialize", self.case.get("serialize", "JSON")))

    def _patience_ms(self, step: Mapping[str, Any]) -> int:
        may_be_held = (step.get("extFields") or {}).get("suspendTimeoutMillis", "0") != "0"
        return ANSWER_MS if may_be_held else self.place.answer_ms

    def _line(self, name: str) -> Connection:
        with self._opening:
            if name not in self.lines:
                address = self.place.name_server if name.startswith("ns") else self.place.broker
                self.lines[name] = Connection(name, address, self.conversation)
            return self.lines[name]

    def _filled(self, value: Any) -> Any:
        return each_text(value, lambda text: _VARIABLE.sub(self._value, text))

    def _value(self, found: re.Match[str]) -> str:
        value = self.variables[found[1]]
        return str(int(value) + int(found[2])) if found[2] else value

    def _body(self, how: Mapping[str, Any] | None) -> bytes:
        if how is None:
            return b""
        if "text" in how:
            return str(self._filled(how["text"])).encode()
        if "base64" in how:
            return base64.b64decode(how["base64"])
        if "json" in how:
            return json.dumps(self._filled(how["json"]), ensure_ascii=False).encode()
        if "fill" in how:
            return bytes(str(how["fill"][0]).encode() * how["fill"][1])
        parts = [
            (each["body"].encode(), each.get("properties") or {})
            for each in how["batch"]
            for _ in range(each.get("times", 1))
        ]
        return batch_body(parts)


def _is_early(step: Mapping[str, Any], answer: Answer) -> bool:
    """Whether the name server does not know a topic yet that it knew in the recorded answer."""
    is_of_name_server = step["code"] == ROUTE_OF_TOPIC and step.get("conn", "").startswith("ns")
    was_told = (step.get("response") or {}).get("code") == 0
    return is_of_name_server and was_told and (answer.command or {}).get("code") == NO_TOPIC


def _saved(answer: Mapping[str, Any], how: list[Any]) -> str:
    fields = answer.get("extFields") or {}
    if how[0] == "ext":
        return str(fields.get(how[1], ""))
    if how[0] == "msgid_phys":
        return str(physical_offset(fields["msgId"]))
    return str(read_records(answer["body"])[how[1]][how[2]])


def described(code: int, answer: Answer, line: Connection) -> dict[str, Any] | None:
    """Convert an answer to a request with the given code to the form of recorded answers.

    The result is None for a missing answer, and `closed` for a closed connection.
    """
    told = answer.command
    if told is None:
        return {"closed": True} if line.is_closed else None
    names = ("code", "flag", "serialize", "language", "remark", "extFields")
    return {name: told.get(name) for name in names} | {"body": _described_body(code, told)}


def _described_body(code: int, told: Mapping[str, Any]) -> dict[str, Any]:
    body = told["body"]
    if not body:
        return {"kind": "empty"}
    if code in WITH_RECORDS and told["code"] == 0:
        try:
            return {"kind": "records", "records": read_records(body)}
        except NotReadableError as error:
            return {
                "kind": "unreadable records",
                "why": str(error),
                "base64": base64.b64encode(body[:BYTES_KEPT]).decode(),
            }
    try:
        return {"kind": "json", "json": lenient_json(body)}
    except ValueError:
        return {"kind": "bytes", "base64": base64.b64encode(body[:BYTES_KEPT]).decode()}
