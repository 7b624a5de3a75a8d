"""What differs between what was recorded and what a broker answered, as sentences with the place of each.

Compared are code, flag, whether there is a remark, extension fields, messages, JSON bodies, pushes and times; not what
depends on when and where a broker ran (offsets in its log, times of storing, addresses) nor the texts of remarks.

Leaves out what a difference means for a clause (`suite`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from attrs import frozen

PROMPT_MS: Final = 900
"""How late an answer that is recorded to be prompt may come: what a busy machine takes."""
RECORDS_VARY: Final = frozenset(
    {"physicalOffset", "storeTimestamp", "totalSize", "propertiesRaw", "preparedTransactionOffset"}
)
FIELDS_VARY: Final = frozenset({"msgId", "transactionId"})
"""Compared by their form: ids have places and addresses in them."""
NO_ANSWER: Final = "no answer"
SHOWN: Final = 120
"""Characters of a value in a sentence."""
_ADDRESS: Final = re.compile(r"\b\d{1,3}(\.\d{1,3}){3}:\d+")
_NAMED: Final = ("brokerName", "cluster")
Variables = Mapping[str, str]


@frozen
class Difference:
    """One difference."""

    where: str
    """The step and the place in its answer: `response.extFields.nextBeginOffset`."""
    expected: str
    got: str

    @property
    def is_of_time(self) -> bool:
        """Whether a machine that stands still can be why: something came late, or not while it was waited for."""
        return self.where.endswith("when") or self.got == NO_ANSWER or "to come to" in self.expected

    def __str__(self) -> str:
        return f"{self.where}: expected {self.expected}, got {self.got}"


def compare(
    expected: Mapping[str, Any], got: Mapping[str, Any], recorded_as: Variables, found_as: Variables
) -> list[Difference]:
    """All differences of a played case from the recorded one; each side's variables say what its broker is called."""
    found = [Difference("conversation", "to go on", error) for error in got.get("errors", ())]
    vary = set(expected.get("normalised", ()))
    sides = _Sides(recorded_as, found_as)
    for part in ("setup", "during", "after"):
        none: Mapping[str, Any] = {}
        pairs = zip_longest(expected.get(part, ()), got.get(part, ()), fillvalue=none)
        for number, (one, other) in enumerate(pairs):
            found += sides.step(f"{part}[{number}]", part, one, other, vary)
    found += sides.answers("response", expected["response"], got.get("response"), vary)
    if expected.get("pushes") is not None:
        found += sides.values("pushes", expected["pushes"], got.get("pushes"))
    return found + list(_timing(expected, got))


def _timing(expected: Mapping[str, Any], got: Mapping[str, Any]) -> Iterator[Difference]:
    allowed, held_ms = expected.get("timing"), got.get("held_ms", 0)
    if not allowed or got.get("response") is None:
        return
    if not allowed["not_before_ms"] <= held_ms <= allowed["not_after_ms"]:
        window = f"{allowed['not_before_ms']} to {allowed['not_after_ms']} ms ({allowed['kind']})"
        yield Difference("response, when", window, f"{held_ms} ms")


@frozen
class _Sides:
    recorded_as: Variables
    found_as: Variables

    def step(
        self, where: str, part: str, one: Mapping[str, Any], other: Mapping[str, Any], vary: set[str]
    ) -> Iterator[Difference]:
        """A step beside the request: of a preparation the code alone."""
        if "failed" in other and "failed" not in one:
            yield Difference(where, f"the queue to come to {one['until_max_offset']}", f"{other['failed']}")
        if "response" not in one:
            return
        if part == "setup":
            codes = [(each.get("response") or {}).get("code") for each in (one, other)]
            if codes[0] != codes[1]:
                yield Difference(f"{where}.code", _text(codes[0]), _text(codes[1]))
            return
        if "held_ms" in one:
            late_ms = abs(other.get("held_ms", 0) - one["held_ms"])
            if late_ms > one.get("tolerance_ms", PROMPT_MS):
                yield Difference(f"{where}, when", f"{one['held_ms']} ms", f"{other.get('held_ms')} ms")
        yield from self.answers(where, one["response"], other.get("response"), vary | set(one.get("normalised", ())))

    def answers(self, where: str, one: Any, other: Any, vary: set[str]) -> Iterator[Difference]:
        """One answer."""
        sides = (_comparable(one, vary, self.recorded_as), _comparable(other, vary, self.found_as))
        yield from _differences(where, *sides)

    def values(self, where: str, one: Any, other: Any) -> Iterator[Difference]:
        """Any JSON."""
        yield from _differences(where, _masked(one, self.recorded_as), _masked(other, self.found_as))


def _differences(where: str, one: Any, other: Any) -> Iterator[Difference]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in sorted({*one, *other}):
            if name not in one:
                yield Difference(f"{where}.{name}", "nothing", _text(other[name]))
            elif name not in other:
                yield Difference(f"{where}.{name}", _text(one[name]), "nothing")
            else:
                yield from _differences(f"{where}.{name}", one[name], other[name])
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _differences(f"{where}[{number}]", left, right)
    elif isinstance(one, list) and isinstance(other, list):
        yield Difference(f"{where}, how many", str(len(one)), str(len(other)))
    elif one != other:
        yield Difference(where, _text(one), _text(other))


def _text(value: Any) -> str:
    if value is None:
        return NO_ANSWER
    if value == {"closed": True}:
        return "the connection closed"
    whole = json.dumps(value, ensure_ascii=False)
    return whole if len(whole) <= SHOWN else f"{whole[: SHOWN - 3]}..."


def _masked(value: Any, names: Variables) -> Any:
    if isinstance(value, str):
        for name in _NAMED:
            if value == names.get(name):
                return f"<{name}>"
        return _ADDRESS.sub("<address>", value)
    if isinstance(value, Mapping):
        return {_masked(name, names): _masked(each, names) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_masked(each, names) for each in value]
    return value


def _comparable(answer: Any, vary: set[str], names: Variables) -> Any:
    """An answer without what may vary."""
    if not answer or "closed" in answer:
        return answer
    fields = {
        name: "<any>" if f"ext.{name}" in vary else _form(value) if name in FIELDS_VARY else value
        for name, value in (answer["extFields"] or {}).items()
    }
    body = answer["body"]
    if "batch.visible" in vary:
        # How much of a burst a wake sees depends on when the woken pull reads.
        fields = {name: value for name, value in fields.items() if name not in {"nextBeginOffset", "maxOffset"}}
        body = {**body, "records": body["records"][:1]} if body["kind"] == "records" else body
    found = {"extFields": _masked(fields, names), **{name: answer[name] for name in ("code", "flag", "language")}}
    if "remark" not in vary:
        found["has a remark"] = bool(answer["remark"])
    if "body" not in vary:
        found["body"] = _comparable_body(body, vary, names)
    return found


def _form(ids: str) -> str:
    """How many ids there are; a text that is none is itself. With an address of IPv6 an id is longer."""
    parts = ids.split(",")
    is_id = all(re.fullmatch("[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}", part) for part in parts)
    return f"<{len(parts)} ids>" if is_id else ids


def _comparable_body(body: Mapping[str, Any], vary: set[str], names: Variables) -> Any:
    if body["kind"] == "records":
        return [_comparable_record(record, vary, names) for record in body["records"]]
    if body["kind"] == "json":
        told = _masked(body["json"], names)
        if not isinstance(told, dict):
            return told
        # Lists are sets: Java's hash maps have no order.
        return {
            name: sorted(value, key=lambda one: json.dumps(one, sort_keys=True)) if isinstance(value, list) else value
            for name, value in told.items()
            if f"json.{name}" not in vary
        }
    return body.get("why") or body.get("base64") or body["kind"]


def _comparable_record(record: Mapping[str, Any], vary: set[str], names: Variables) -> Any:
    kept = {name: value for name, value in record.items() if name not in RECORDS_VARY}
    kept = _masked(kept, names)
    properties = {name: "<any>" if f"property.{name}" in vary else value for name, value in kept["properties"].items()}
    shown = {name: "<any>" if f"record.{name}" in vary else value for name, value in kept.items()}
    return shown | {"properties": properties}
