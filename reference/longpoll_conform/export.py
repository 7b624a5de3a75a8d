"""Exports the vectors as self-contained files for other programs: lines of JSON, the clauses, and a page about both.

The files state explicitly what the recordings leave to the player: which answer to wait for and how long, the expected
answer, and its time window. Topic and group names contain `${run}`, for which a player inserts six letters or digits
that it has not used before. `docs/conformance.md` describes the format of the steps. An expected answer is a pattern
with its allowed variations. A pattern may contain special texts:

    <any>          any value, but not a missing one
    <address>      an IPv4 address with its port
    <ids N>        N message ids with commas between them, each 32 or 56 hexadecimal digits
    ${name}        the value of a variable: brokerName, cluster, or one that a step saved

`{"<set>": [...]}` matches a list in any order, and `{"<begin>": [...]}` a list that begins with these values. An object
must have exactly the names of its pattern; `{"<some>": {...}}` matches an object that may have more names.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from importlib import resources
from pathlib import Path
from typing import Any, Final

from longpoll_conform.clauses import BY_VECTOR, CAPABILITIES, CLAUSES, PROFILES, Clause
from longpoll_conform.vectors import RECORDED, RECORDED_AS, Vector, recorded
from longpoll_conform.wire import batch_body, each_text, encode_header
from longpoll_spec.errors import OutputError

ANY: Final = "<any>"
ADDRESS: Final = "<address>"
SOME: Final = "<some>"
SET: Final = "<set>"
BEGIN: Final = "<begin>"
UNREADABLE: Final = "unreadable"
SILENCE: Final[Mapping[str, bool]] = {"silence": True}
"""The pattern of a missing answer."""
CLOSED: Final[Mapping[str, bool]] = {"closed": True}
"""The pattern of a closed connection."""
RECORDS_VARY: Final = frozenset(
    {"physicalOffset", "storeTimestamp", "totalSize", "propertiesRaw", "preparedTransactionOffset"}
)
"""Fields whose values depend on the position in the log and on the time."""
FIELDS_VARY: Final = frozenset({"msgId", "transactionId"})
"""Fields of which only the format is compared, because ids contain log positions and addresses."""
NAMED: Final = ("brokerName", "cluster")
_ADDRESS: Final = re.compile(r"\d{1,3}(\.\d{1,3}){3}:\d+")
_ID: Final = re.compile("[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")
Names = Mapping[str, str]


def pattern_of(answer: Mapping[str, Any] | None, vary: AbstractSet[str], names: Names) -> dict[str, Any]:
    """Return the pattern of a recorded answer; fields in `vary` may have any value.

    The pattern contains variables instead of the broker's name and the cluster's name in `names`.
    """
    if not answer or "closed" in answer:
        return dict(CLOSED if answer else SILENCE)
    found = seen(answer)
    fields = {
        name: ANY if f"ext.{name}" in vary else _form(value) if name in FIELDS_VARY else masked(value, names)
        for name, value in found["extFields"].items()
    }
    body = _body(found["body"], vary, names)
    if "batch.visible" in vary:
        # The number of messages in the answer depends on when the woken pull reads the queue.
        fields |= {name: ANY for name in ("nextBeginOffset", "maxOffset") if name in fields}
        body = {"records": {BEGIN: body["records"][:1]}} if "records" in body else body
    pattern = {**found, "extFields": fields, "body": body}
    left_out = {name for name, mask in (("hasRemark", "remark"), ("body", "body")) if mask in vary}
    return {SOME: {name: value for name, value in pattern.items() if name not in left_out}}


def seen(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Convert an answer into the form of a pattern: its body is `empty`, or has `records`, `json` or `hex`."""
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
    if "why" in body:
        return {UNREADABLE: body["why"]}
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
        # Lists become sets, because Java's hash maps have no order.
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
    """Replace addresses in JSON with `<address>`, and the broker's names with `${brokerName}` and `${cluster}`."""

    def mask(text: str) -> str:
        name = next((name for name in NAMED if text == names.get(name)), None)
        return f"${{{name}}}" if name is not None else ADDRESS if _ADDRESS.fullmatch(text) else text

    return each_text(value, mask)


def _form(ids: str) -> str:
    """Replace a list of ids with `<ids N>`, where N is the number of ids; return any other text unchanged."""
    parts = ids.split(",")
    return f"<ids {len(parts)}>" if all(map(_ID.fullmatch, parts)) else ids


def fits(pattern: str, text: Any, names: Names) -> bool:
    """Whether a value matches a text in a pattern, such as `<any>`."""
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
    """Replace the variables in a text with the broker's name and cluster."""
    for name in NAMED:
        text = text.replace(f"${{{name}}}", names.get(name, ""))
    return text


def flat(pattern: Any, place: str = "") -> dict[str, str]:
    """Flatten a pattern into texts by their paths: names and indices joined by points, without `body`.

    The path `#` has the size of an object that may have no other names, or of a complete list. Lists that match in any
    order are sorted by the texts of their values.
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
    """Return the texts of a value in the order of their paths, as a sort key for lists that match in any order."""
    return [text for _place, text in sorted(flat(value).items())]


FORMAT: Final = 2
RUN: Final = "${run}"
"""The placeholder for six letters or digits. The placeholder also has six characters, so names keep their length."""
PLACE: Final = "place"
"""The name of a value that a step saves from an answer. The value is the log position: the last 16 digits of a message
id."""
GET_MAX_OFFSET: Final = 30
SCAN: Final = "scan"
"""The name of a requirement of vectors whose recorded answer came from RocketMQ's five-second scan."""
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
    """Return a vector as the JSON object that is one line of the exported file."""
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
    """Yield the exported steps of a vector, in order."""
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
    def __init__(self, vector: Vector) -> None:
        self._case = vector.case
        self._vary = frozenset(vector.case.get("normalised", ()))
        self._opaques = itertools.count(1)

    def step(self, step: Mapping[str, Any], name: str, *, of_preparation: bool = False) -> Iterator[Step]:
        """Yield the exported steps of a recorded step. A step of the preparation expects only its response code."""
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
        pattern = pattern_of(of["response"], self._vary | set(vary), RECORDED_AS)
        return {"expect": flat(_sized(_named(pattern)))}

    def _until(self, step: Mapping[str, Any]) -> Step:
        wanted = step["until_max_offset"]
        fields = {"topic": wanted["topic"], "queueId": str(wanted["queueId"])}
        asked = self._frame({"code": GET_MAX_OFFSET, "extFields": fields})
        limit_ms = step.get("limit_ms", UNTIL_MS)
        return {"until": wanted["offset"], "field": "offset", "limitMs": limit_ms, "conn": "probe", **asked}

    def ask(self, step: Mapping[str, Any], name: str) -> Iterator[Step]:
        """Yield the step that sends a request without waiting for the answer."""
        asked: Step = {"ask": name, "conn": step.get("conn", "main")}
        if "raw" in step:
            yield asked | {"raw": base64.b64decode(step["raw"]).hex(), "opaque": step["opaque"]}
        else:
            yield asked | self._frame(step)

    def _frame(self, step: Mapping[str, Any]) -> Step:
        """Return a request's frame as pieces of text and bytes, and as a readable command."""
        serialize = step.get("serialize", self._case.get("serialize", "JSON"))
        if _USED.search(json.dumps(step.get("extFields"))):
            # A header in RocketMQ's binary format cannot contain parts of variable length, so use JSON.
            serialize = "JSON"
        opaque = next(self._opaques)
        command = {key: step[key] for key in ("code", *_COPIED) if key in step}
        command |= {"opaque": opaque, "extFields": _named(step.get("extFields"))}
        header = encode_header(command, serialize)
        piece = {"text": header.decode()} if serialize == "JSON" else {"kind": 1, "hex": header.hex()}
        body = list(_pieces(step["body"])) if step.get("body") is not None else []
        return {"opaque": opaque, "header": piece, "body": body, "meant": {"serialize": serialize, **command}}


def _pieces(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the pieces of a body; a repeated text is one piece with the number of repetitions in `times`."""
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
    """Return the path of the value in an answer that a step saves as a variable."""
    if how[0] == "ext":
        return f"extFields.{how[1]}"
    return PLACE if how[0] == "msgid_phys" else f"records.{how[1]}.{how[2]}"


def _window(timing: Mapping[str, Any] | None) -> Step:
    return {"notBeforeMs": timing["not_before_ms"], "notAfterMs": timing["not_after_ms"]} if timing else {}


def _named(value: Any) -> Any:
    """Insert `${run}` into the names of topics and groups in JSON."""
    return each_text(value, lambda text: _NAME.sub(rf"\1{RUN}", text))


def _sized(named: dict[str, Any]) -> dict[str, Any]:
    """Adjust the body lengths in a pattern to the length of the names that contain `${run}`."""
    records = named.get(SOME, {}).get("body", {}).get("records", [])
    for record in records[BEGIN] if isinstance(records, Mapping) else records:
        if "body" in record[SOME]:
            record[SOME]["bodyLength"] += record[SOME]["body"].count(RUN) * len(RUN)
    return named


MARK: Final = "@CAPABILITIES@"
"""The placeholder for the table of capabilities in the exported page."""


def files(version: str) -> Mapping[str, str]:
    """Return the text of every file by its name; `version` is the version of longpoll."""
    page = (resources.files("longpoll_conform") / "vectors" / "EXPORT.md").read_text(encoding="utf-8")
    table = "\n".join(f"| `{name}` | {meaning} |" for name, meaning in CAPABILITIES.items())
    return {
        "README.md": page.replace(MARK, table),
        "VERSION": f"{version}\n",
        "clauses.json": json.dumps([_clause(clause) for clause in CLAUSES], ensure_ascii=False, indent=1) + "\n",
        **{f"rocketmq-{each}.jsonl": _lines(each) for each in RECORDED},
    }


def write(directory: Path, version: str) -> list[Path]:
    """Write the files; return their paths. Raises OutputError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        paths = []
        for name, text in files(version).items():
            paths.append(directory / name)
            paths[-1].write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {directory}: {error.strerror or error}") from error
    return paths


def _lines(version: str) -> str:
    return "".join(
        json.dumps(shipped(vector), ensure_ascii=False, separators=(",", ":")) + "\n" for vector in recorded(version)
    )


def _clause(clause: Clause) -> dict[str, Any]:
    return {
        "id": clause.id,
        "level": clause.level,
        "sentence": clause.sentence,
        "source": clause.source,
        "vectors": list(clause.vectors),
    }
