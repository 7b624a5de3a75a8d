"""What an answer must be, as a pattern that says itself what may be otherwise.

Texts of a pattern that mean more than themselves:

    <any>          anything that is there
    <address>      an address of IPv4 with its port
    <ids N>        N message ids with commas between them, each 32 or 56 hexadecimal digits
    ${name}        what is known by that name: brokerName, cluster, and what a step has saved

`{"<set>": [...]}` is a list in any order, `{"<begin>": [...]}` one that begins so. An object has the names of its
pattern and no others, but `{"<some>": {...}}` is one that has these, and perhaps more.

Leaves out what differs from a pattern, as sentences (`compare`).
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
"""The pattern of a connection that is closed instead."""
RECORDS_VARY: Final = frozenset(
    {"physicalOffset", "storeTimestamp", "totalSize", "propertiesRaw", "preparedTransactionOffset"}
)
"""What depends on the place and the time of storing."""
FIELDS_VARY: Final = frozenset({"msgId", "transactionId"})
"""Compared by their form: ids have places and addresses in them."""
NAMED: Final = ("brokerName", "cluster")
_ADDRESS: Final = re.compile(r"\d{1,3}(\.\d{1,3}){3}:\d+")
_ID: Final = re.compile("[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")
Names = Mapping[str, str]


def pattern_of(answer: Mapping[str, Any] | None, vary: AbstractSet[str], names: Names) -> dict[str, Any]:
    """The pattern of a recorded answer, in which what is in `vary` may be anything; its broker is called as `names`."""
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
    """An answer in the form that a pattern has: its body is `empty`, or has `records`, `json` or `hex`."""
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
    # The checksum says of a body that is known no more than that it fits.
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
    """Any JSON with `<address>` for addresses, and `${brokerName}` and `${cluster}` for what the broker is called."""
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
    """How many ids there are; a text that is none is itself."""
    parts = ids.split(",")
    return f"<ids {len(parts)}>" if all(map(_ID.fullmatch, parts)) else ids


def fits(pattern: str, text: Any, names: Names) -> bool:
    """Whether a value is what a pattern's text means."""
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
    """A text with the broker's name and cluster in it."""
    for name in NAMED:
        text = text.replace(f"${{{name}}}", names.get(name, ""))
    return text


def flat(pattern: Any, place: str = "") -> dict[str, str]:
    """A pattern as texts by their places: names and numbers with points between them, and `body` left out.

    Of an object with no other names than those of the pattern, and of a list with no more values, `#` is how many there
    are. Lists in any order have that of their values' texts.
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
    """What a list in any order is sorted by: the texts of a value, in the order of their places."""
    return [text for _place, text in sorted(flat(value).items())]
