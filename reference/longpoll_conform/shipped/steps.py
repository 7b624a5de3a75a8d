"""A recorded vector as a list of steps that another program plays one after the other: `docs/conformance.md` has them.

What the recordings leave to the program that plays them is said here in full: what is waited for and how long, what an
answer must be, in which window of time. Topics and groups have `${run}` in their names: six letters or digits of one
playing.

Leaves out where the steps are written (`archive`).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from longpoll_conform.clauses import BY_VECTOR, PROFILES
from longpoll_conform.shipped.patterns import BEGIN, SOME, pattern_of
from longpoll_conform.vectors import RECORDED_AS, Vector

FORMAT: Final = 2
RUN: Final = "${run}"
RUN_SIZE: Final = 6
"""Letters and digits of a run: lengths of bodies that have names in them count on it."""
SCAN: Final = "scan"
"""What a vector needs whose recorded answer came from the scan every five seconds."""
ANSWER_MS: Final = 10_000
JOIN_MS: Final = 16_000
UNTIL_MS: Final = 8_000
PUSHES_MS: Final = 300
TOLERANCE_MS: Final = 900
ONE_WAY: Final = 2
_NAME: Final = re.compile(r"(?<![A-Za-z0-9])([tg]c\d{3})")
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
        "needs": sorted(needed | clause.needs | scan),
        "lacks": sorted(lacking | clause.lacks),
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
    yield {"answer": "request", "within_ms": within_ms, **playing.expected(case, ()), **_window(case.get("timing"))}
    for number, step in enumerate(case.get("after", ())):
        yield from playing.step(step, f"after {number}")
    if case.get("pushes") is not None:
        yield {"pushes": _named(case["pushes"]), "after_ms": PUSHES_MS}


class _Playing:
    """Steps of one vector."""

    def __init__(self, vector: Vector) -> None:
        self._case = vector.case
        self._vary = frozenset(vector.case.get("normalised", ()))

    def step(self, step: Mapping[str, Any], name: str, *, of_preparation: bool = False) -> Iterator[Step]:
        """One step of the recording; of a preparation the code alone is expected."""
        if "sleep_ms" in step or "close" in step:
            yield {key: step[key] for key in ("sleep_ms", "close") if key in step}
        elif "until_max_offset" in step:
            yield {"until": _named(step["until_max_offset"]), "limit_ms": step.get("limit_ms", UNTIL_MS)}
        elif "join" in step:
            late_ms = step.get("tolerance_ms", TOLERANCE_MS)
            window = {"not_before_ms": max(0, step["held_ms"] - late_ms), "not_after_ms": step["held_ms"] + late_ms}
            within_ms = step.get("wait_ms", JOIN_MS)
            yield {
                "answer": step["join"],
                "within_ms": within_ms,
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
        answer = {"answer": name, "within_ms": step.get("wait_ms", ANSWER_MS)}
        if "response" in step:
            answer |= self.expected(step, step.get("normalised", ()))
            if of_preparation and SOME in answer["expect"]:
                answer["expect"] = {SOME: {"code": answer["expect"][SOME]["code"]}}
        if "save" in step:
            answer["save"] = {variable: _saved(how) for variable, how in step["save"].items()}
        yield answer

    def expected(self, of: Mapping[str, Any], vary: Sequence[str]) -> Step:
        """What the answer of a step, or of the whole case, must be."""
        pattern = pattern_of(of["response"], self._vary | set(vary), RECORDED_AS)
        return {"expect": _sized(_named(pattern))}

    def ask(self, step: Mapping[str, Any], name: str) -> Iterator[Step]:
        """A request, which is not waited for."""
        asked: Step = {"ask": name, "conn": step.get("conn", "main")}
        if "raw" in step:
            yield asked | {"hex": base64.b64decode(step["raw"]).hex(), "opaque": step["opaque"]}
            return
        serialize = step.get("serialize", self._case.get("serialize", "JSON"))
        asked |= {"code": step["code"], "serialize": serialize, **{key: step[key] for key in _COPIED if key in step}}
        if step.get("extFields") is not None:
            asked["extFields"] = _named(step["extFields"])
        if step.get("body") is not None:
            asked["body"] = _asked_body(step["body"])
        yield asked


def _asked_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """A body as `text`, perhaps repeated `times`, as `hex` or as a `batch` of messages."""
    if "text" in body:
        return {"text": _named(body["text"])}
    if "json" in body:
        return {"text": _named(json.dumps(body["json"], ensure_ascii=False))}
    if "fill" in body:
        return {"text": str(body["fill"][0]), "times": body["fill"][1]}
    if "base64" in body:
        return {"hex": base64.b64decode(body["base64"]).hex()}
    return {
        "batch": [
            {
                "body": _named(each["body"]),
                "properties": _named(each.get("properties") or {}),
                "times": each.get("times", 1),
            }
            for each in body["batch"]
        ]
    }


def _saved(how: Sequence[Any]) -> dict[str, Any]:
    """What is kept of an answer as a variable."""
    if how[0] == "ext":
        return {"extField": how[1]}
    if how[0] == "msgid_phys":
        return {"physicalOffsetOf": "msgId"}
    return {"record": how[1], "field": how[2]}


def _window(timing: Mapping[str, Any] | None) -> Step:
    return {name: timing[name] for name in ("not_before_ms", "not_after_ms")} if timing else {}


def _named(value: Any) -> Any:
    """Any JSON with `${run}` in the names of topics and groups."""
    if isinstance(value, str):
        return _NAME.sub(rf"\1{RUN}", value)
    if isinstance(value, Mapping):
        return {_named(name): _named(each) for name, each in value.items()}
    return [_named(each) for each in value] if isinstance(value, list) else value


def _sized(named: dict[str, Any]) -> dict[str, Any]:
    """The pattern with lengths of bodies as they are with names of a run."""
    records = named.get(SOME, {}).get("body", {}).get("records", [])
    for record in records[BEGIN] if isinstance(records, Mapping) else records:
        if "body" in record[SOME]:
            record[SOME]["bodyLength"] += record[SOME]["body"].count(RUN) * RUN_SIZE
    return named
