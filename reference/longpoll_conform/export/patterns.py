"""An expected answer as a pattern with its allowed variations.

Special texts in a pattern:

    <any>          anything that is there
    <address>      an IPv4 address with its port
    <ids N>        N message ids with commas between them, each 32 or 56 hexadecimal digits
    ${name}        the value of a variable: brokerName, cluster, or one that a step saved

`{"<set>": [...]}` is a list in any order, `{"<begin>": [...]}` a list with this beginning. An object has exactly the
names of its pattern, but `{"<some>": {...}}` may have more.

Differences as sentences: `compare`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

ANY: Final = "<any>"
ADDRESS: Final = "<address>"
SOME: Final = "<some>"
SET: Final = "<set>"
BEGIN: Final = "<begin>"
SILENCE: Final[Mapping[str, bool]] = {"silence": True}
"""The pattern of no answer."""
CLOSED: Final[Mapping[str, bool]] = {"closed": True}
"""The pattern of a closed connection."""
RECORDS_VARY: Final = frozenset(
    {"physicalOffset", "storeTimestamp", "totalSize", "propertiesRaw", "preparedTransactionOffset"}
)
"""Fields that depend on the place and the time of storing."""
FIELDS_VARY: Final = frozenset({"msgId", "transactionId"})
"""Compared only by form, because ids contain places and addresses."""
NAMED: Final = ("brokerName", "cluster")
_ADDRESS: Final = re.compile(r"\d{1,3}(\.\d{1,3}){3}:\d+")
_ID: Final = re.compile("[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")
Names = Mapping[str, str]


def pattern_of(answer: Mapping[str, Any] | None, vary: AbstractSet[str], names: Names) -> dict[str, Any]:
    """The pattern of a recorded answer; fields in `vary` may have any value, and its broker is called as in `names`."""
    if not answer or "closed" in answer:
        return dict(CLOSED if answer else SILENCE)
    found = seen(answer)
    fields = {
        name: ANY if f"ext.{name}" in vary else _form(value) if name in FIELDS_VARY else masked(value, names)
        for name, value in found["extFields"].items()
    }
    body = _body(found["body"], vary, names)
    if "batch.visible" in vary:
        # How much of a burst a wake sees depends on when the woken pull reads.
        fields |= {name: ANY for name in ("nextBeginOffset", "maxOffset") if name in fields}
        body = {"records": {BEGIN: body["records"][:1]}} if "records" in body else body
    pattern = {**found, "extFields": fields, "body": body}
    left_out = {name for name, mask in (("hasRemark", "remark"), ("body", "body")) if mask in vary}
    return {SOME: {name: value for name, value in pattern.items() if name not in left_out}}


def seen(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer in the form of a pattern: its body is `empty`, or has `records`, `json` or `hex`."""
    return {
        "code": answer["code"],
        "flag": answer["flag"],
        "hasRemark": bool(answer["remark"]),
        "extFields": dict(answer["extFields"] or {}),
        "body": _seen_body(answer["body"]),
    }


def _seen_body(body: Mapping[str, Any]) -> dict[str, Any]:
    if body["kind"] == "records":
        return {"records": [_seen_record(record) for record in body["records"]]}
    if body["kind"] == "json":
        return {"json": body["json"]}
    if body["kind"] == "empty":
        return {"empty": True}
    return {"hex": base64.b64decode(body["base64"]).hex()}


def _seen_record(record: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in record.items() if name not in RECORDS_VARY | {"body", "bodySha256"}}
    if "body" not in record:
        return found
    # The checksum of a known body adds no information.
    del found["bodyCRC"]
    content = base64.b64decode(record["body"])
    try:
        return {**found, "body": content.decode()}
    except UnicodeDecodeError:
        return {**found, "bodyHex": content.hex()}


def _body(body: Mapping[str, Any], vary: AbstractSet[str], names: Names) -> dict[str, Any]:
    if "records" in body:
        return {"records": [_record(record, vary, names) for record in body["records"]]}
    told: Any = masked(body.get("json"), names)
    if isinstance(told, dict):
        # Lists are sets: Java's hash maps have no order.
        return {
            "json": {
                name: ANY if f"json.{name}" in vary else {SET: value} if isinstance(value, list) else value
                for name, value in told.items()
            }
        }
    return {"json": told} if "json" in body else dict(body)


def _record(record: Mapping[str, Any], vary: AbstractSet[str], names: Names) -> dict[str, Any]:
    shown: dict[str, Any] = {
        name: ANY if f"record.{name}" in vary else masked(value, names) for name, value in record.items()
    }
    properties = {name: ANY if f"property.{name}" in vary else value for name, value in shown["properties"].items()}
    return {SOME: {**shown, "properties": properties}}


def masked(value: Any, names: Names) -> Any:
    """JSON with `<address>` for addresses, and `${brokerName}` and `${cluster}` for the broker's names."""
    if isinstance(value, str):
        for name in NAMED:
            if value == names.get(name):
                return f"${{{name}}}"
        return ADDRESS if _ADDRESS.fullmatch(value) else value
    if isinstance(value, Mapping):
        return {masked(name, names): masked(each, names) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [masked(each, names) for each in value]
    return value


def _form(ids: str) -> str:
    """The number of ids; a text that is not a list of ids is unchanged."""
    parts = ids.split(",")
    return f"<ids {len(parts)}>" if all(map(_ID.fullmatch, parts)) else ids


def fits(pattern: str, text: Any, names: Names) -> bool:
    """Whether a value matches a pattern's text."""
    if pattern == ANY:
        return True
    if not isinstance(text, str):
        return False
    if pattern == ADDRESS:
        return _ADDRESS.fullmatch(text) is not None
    if pattern.startswith("<ids "):
        return _form(text) == pattern
    return filled(pattern, names) == text


def filled(text: str, names: Names) -> str:
    """A text with the broker's name and cluster filled in."""
    for name in NAMED:
        text = text.replace(f"${{{name}}}", names.get(name, ""))
    return text


def flat(pattern: Any, place: str = "") -> dict[str, str]:
    """A pattern as texts by their places: names and numbers joined by points, without `body`.

    `#` is the size of an object with exactly the pattern's names, or of a complete list. Lists in any order are sorted
    by their values' texts.
    """
    if not isinstance(pattern, Mapping | list):
        return {place: pattern if isinstance(pattern, str) else json.dumps(pattern)}
    kind = (
        next((each for each in (SOME, BEGIN, SET) if each in pattern), None) if isinstance(pattern, Mapping) else None
    )
    values: Any = pattern if kind is None or isinstance(pattern, list) else pattern[kind]
    if kind == SET:
        values = sorted(values, key=_texts)
    inner = f"{place}." if place else ""
    counts = kind not in {SOME, BEGIN} and place != "body" and pattern not in (SILENCE, CLOSED)
    found = {f"{inner}#": str(len(values))} if counts else {}
    for name, each in values.items() if isinstance(values, Mapping) else enumerate(values):
        found |= flat(each, f"{inner}{name}".removeprefix("body."))
    return found


def _texts(value: Any) -> list[str]:
    """The sort key in a list in any order: the texts of a value, in the order of their places."""
    return [text for _place, text in sorted(flat(value).items())]
