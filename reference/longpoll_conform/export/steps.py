"""A recorded vector as a list of steps for other programs (format: `docs/conformance.md`).

Details that the recordings leave to the player are explicit here: what to wait for and how long, the expected answer,
and its time window. Topics and groups have `${run}` in their names: six letters or digits per playing.

Writing them: `archive`.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from longpoll_conform.clauses import BY_VECTOR, PROFILES
from longpoll_conform.export.patterns import BEGIN, SOME, flat, pattern_of
from longpoll_conform.vectors import RECORDED_AS, Vector
from longpoll_conform.wire import batch_body, encode_header

FORMAT: Final = 2
RUN: Final = "${run}"
"""The placeholder for six letters or digits. It is six characters long, so names keep their length."""
PLACE: Final = "place"
"""An answer's value with a message id: the log position, which is the id's last 16 digits."""
GET_MAX_OFFSET: Final = 30
SCAN: Final = "scan"
"""The requirement of a vector whose recorded answer came from the five-second scan."""
ANSWER_MS: Final = 10_000
JOIN_MS: Final = 16_000
UNTIL_MS: Final = 8_000
PUSHES_MS: Final = 300
TOLERANCE_MS: Final = 900
ONE_WAY: Final = 2
_NAME: Final = re.compile(r"(?<![A-Za-z0-9])([tg]c\d{3})")
_USED: Final = re.compile(r"\$\{")
_COPIED: Final = ("flag", "language", "version")
Step = dict[str, Any]


def shipped(vector: Vector) -> dict[str, Any]:
    """One line of the shipped vectors."""
    clause = BY_VECTOR[vector.id]
    needed, lacking = PROFILES[vector.profile]
    scan = {SCAN} if vector.case.get("depends") == SCAN else set()
    return {
        "format": FORMAT,
        "id": vector.id,
        "title": vector.title,
        "clause": clause.id,
        "level": clause.level,
        "recorded": vector.version,
        "when": sorted(needed | clause.needs | vector.needs | scan)
        + [f"!{name}" for name in sorted(lacking | clause.lacks)],
        "steps": list(steps_of(vector)),
    }


def steps_of(vector: Vector) -> Iterator[Step]:
    """The steps in their order."""
    case, playing = vector.case, _Playing(vector)
    for number, step in enumerate(case.get("setup", ())):
        yield from playing.step(step, f"setup {number}", of_preparation=True)
    yield from playing.ask(case["request"], "request")
    for number, step in enumerate(case.get("during", ())):
        if "at_ms" in step:
            yield {"after": "request", "ms": step["at_ms"]}
        yield from playing.step(step, f"during {number}")
    within_ms = case.get("wait_ms", ANSWER_MS)
    yield {"answer": "request", "withinMs": within_ms, **playing.expected(case, ()), **_window(case.get("timing"))}
    for number, step in enumerate(case.get("after", ())):
        yield from playing.step(step, f"after {number}")
    if case.get("pushes") is not None:
        yield {"pushes": flat([{SOME: _named(push)} for push in case["pushes"]]), "afterMs": PUSHES_MS}


class _Playing:
    """The steps of one vector."""

    def __init__(self, vector: Vector) -> None:
        self._case = vector.case
        self._vary = frozenset(vector.case.get("normalised", ()))
        self._opaques = itertools.count(1)

    def step(self, step: Mapping[str, Any], name: str, *, of_preparation: bool = False) -> Iterator[Step]:
        """One step of the recording; in a preparation only the code is expected."""
        if "sleep_ms" in step or "close" in step:
            yield {"close": step["close"]} if "close" in step else {"sleepMs": step["sleep_ms"]}
        elif "until_max_offset" in step:
            yield self._until(step)
        elif "join" in step:
            late_ms = step.get("tolerance_ms", TOLERANCE_MS)
            window = {"notBeforeMs": max(0, step["held_ms"] - late_ms), "notAfterMs": step["held_ms"] + late_ms}
            within_ms = step.get("wait_ms", JOIN_MS)
            yield {
                "answer": step["join"],
                "withinMs": within_ms,
                **self.expected(step, step.get("normalised", ())),
                **window,
            }
        elif "spawn" in step:
            yield from self.ask(step, step["spawn"])
        else:
            yield from self._call(step, name, of_preparation=of_preparation)

    def _call(self, step: Mapping[str, Any], name: str, *, of_preparation: bool) -> Iterator[Step]:
        yield from self.ask(step, name)
        if step.get("flag", 0) & ONE_WAY:
            return
        answer = {"answer": name, "withinMs": step.get("wait_ms", ANSWER_MS)}
        if "response" in step:
            answer |= self.expected(step, step.get("normalised", ()))
            if of_preparation and "code" in answer["expect"]:
                answer["expect"] = {"code": answer["expect"]["code"]}
        if "save" in step:
            answer["save"] = {variable: _saved(how) for variable, how in step["save"].items()}
        yield answer

    def expected(self, of: Mapping[str, Any], vary: Sequence[str]) -> Step:
        """The expected answer of a step, or of the whole case."""
        pattern = pattern_of(of["response"], self._vary | set(vary), RECORDED_AS)
        return {"expect": flat(_sized(_named(pattern)))}

    def _until(self, step: Mapping[str, Any]) -> Step:
        wanted = step["until_max_offset"]
        fields = {"topic": wanted["topic"], "queueId": str(wanted["queueId"])}
        asked = self._frame({"code": GET_MAX_OFFSET, "extFields": fields})
        limit_ms = step.get("limit_ms", UNTIL_MS)
        return {"until": wanted["offset"], "field": "offset", "limitMs": limit_ms, "conn": "probe", **asked}

    def ask(self, step: Mapping[str, Any], name: str) -> Iterator[Step]:
        """A request, without waiting for the answer."""
        asked: Step = {"ask": name, "conn": step.get("conn", "main")}
        if "raw" in step:
            yield asked | {"raw": base64.b64decode(step["raw"]).hex(), "opaque": step["opaque"]}
        else:
            yield asked | self._frame(step)

    def _frame(self, step: Mapping[str, Any]) -> Step:
        """A request's frame as pieces of text and bytes, and its meaning."""
        serialize = step.get("serialize", self._case.get("serialize", "JSON"))
        if _USED.search(json.dumps(step.get("extFields"))):
            # Only a text header can contain parts without a fixed length.
            serialize = "JSON"
        opaque = next(self._opaques)
        command = {key: step[key] for key in ("code", *_COPIED) if key in step}
        command |= {"opaque": opaque, "extFields": _named(step.get("extFields"))}
        header = encode_header(command, serialize)
        piece = {"text": header.decode()} if serialize == "JSON" else {"kind": 1, "hex": header.hex()}
        body = list(_pieces(step["body"])) if step.get("body") is not None else []
        return {"opaque": opaque, "header": piece, "body": body, "meant": {"serialize": serialize, **command}}


def _pieces(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A body as pieces, with repetitions as `times`."""
    if "text" in body:
        yield {"text": _named(body["text"])}
    elif "json" in body:
        yield {"text": _named(json.dumps(body["json"], ensure_ascii=False))}
    elif "fill" in body:
        yield {"text": str(body["fill"][0]), "times": body["fill"][1]}
    elif "base64" in body:
        yield {"hex": base64.b64decode(body["base64"]).hex()}
    else:
        for each in body["batch"]:
            message = (_named(each["body"]).encode(), _named(each.get("properties") or {}))
            times = {"times": each["times"]} if each.get("times", 1) > 1 else {}
            yield {"hex": batch_body([message]).hex(), **times}


def _saved(how: Sequence[Any]) -> str:
    """The answer's value to save as a variable."""
    if how[0] == "ext":
        return f"extFields.{how[1]}"
    return PLACE if how[0] == "msgid_phys" else f"records.{how[1]}.{how[2]}"


def _window(timing: Mapping[str, Any] | None) -> Step:
    return {"notBeforeMs": timing["not_before_ms"], "notAfterMs": timing["not_after_ms"]} if timing else {}


def _named(value: Any) -> Any:
    """JSON with `${run}` in the names of topics and groups."""
    if isinstance(value, str):
        return _NAME.sub(rf"\1{RUN}", value)
    if isinstance(value, Mapping):
        return {_named(name): _named(each) for name, each in value.items()}
    return [_named(each) for each in value] if isinstance(value, list) else value


def _sized(named: dict[str, Any]) -> dict[str, Any]:
    """The pattern with body lengths for the names of a run."""
    records = named.get(SOME, {}).get("body", {}).get("records", [])
    for record in records[BEGIN] if isinstance(records, Mapping) else records:
        if "body" in record[SOME]:
            record[SOME]["bodyLength"] += record[SOME]["body"].count(RUN) * len(RUN)
    return named
