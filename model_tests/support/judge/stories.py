"""Small histories (stories) written as lines of text, with the clauses that the judge reports for each.

A line is `clauses: [options] event; event; ...`. Clauses are separated by commas, and a `?` follows an uncertain
clause. If no clause is reported, the verdict `valid` or `unknown` takes their place. An event is `kind [request]
field=value ... @time`. Times are milliseconds, and `@a..b` is an interval.

| kind | event | fields without a value |
| --- | --- | --- |
| send, pull, ask, update, delete | request_received of code 10, 11, 14, 15, 215 | pull: offset 3, 100 ms, all tags |
| ack | message_acknowledged | |
| reply, none, found | answer_sent; of code 19 and 0, with the ends 3, 0, 3 | |
| any other | the event of that name | |

Events are in broker `b`, topic `T`, queue 0, connection `c` and source `s`. `!field` removes a field.

| option | meaning |
| --- | --- |
| `begins=N`, `t.ends=N` | when source `s` begins, or `t` ends |
| `as_told` | events are numbered in the order of the story instead of by time |
| `outside` | the history contains no step that only the broker itself can record |
| `unix` | the sources use the wall clock, which can be set |
| `policy=NAME` | the policy that meta.json names |
| `limit=N` | the maximum number of pulls that the source promises to hold |
| `alone` | another story in the same history would change the reported clauses |
| `unsteady` | the clock of source `s` is set back once |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from attrs import frozen
from model_tests.support.judge.recording import MS

from longpoll_judge.contract.result import Result
from longpoll_spec.history import FORMAT_VERSION, META_FILE, Event, Meta, Source

PLACE: Final = {"source": "s", "broker": "b", "topic": "T", "queue": 0, "connection": "c"}
ENDS: Final = {"offset_next": 3, "offset_min": 0, "offset_max": 3}
PULL: Final = {"offset": 3, "count_max": 32, "may_hold": True, "timeout_ms": 100, "expression": "*"}
KINDS: Final[dict[str, dict[str, Any]]] = {
    "send": {"event": "request_received", "code": 10},
    "pull": {"event": "request_received", "code": 11, **PULL, "expression_type": "TAG"},
    "ask": {"event": "request_received", "code": 14, "group": "G"},
    "update": {"event": "request_received", "code": 15, "group": "G"},
    "delete": {"event": "request_received", "code": 215},
    "ack": {"event": "message_acknowledged"},
    "reply": {"event": "answer_sent"},
    "none": {"event": "answer_sent", "code": 19, **ENDS},
    "lost": {"event": "lost", "lost_count": 1},
    "found": {"event": "answer_sent", "code": 0, **ENDS},
}
"""Maps each kind of event to its default fields."""
START_MS: Final = 20_000
"""The time in ms that a story writes as 0."""
LIMIT_MS: Final = 10.0
"""The limit in ms above which the judge counts an answer in a story as late."""
LONG_MS: Final = 1_000_000
"""The time in ms at which a source ends by default."""
EVENT: Final = re.compile(
    r"(?P<kind>\w+)(?: (?P<rest>.*?))? ?@(?P<after>-?\d+(?:\.\d+)?)(?:\.\.(?P<before>-?\d+(?:\.\d+)?))?"
)


TEXTS: Final = frozenset({"topic", "broker", "source", "connection", "group", "tag", "expression", "request", "cause"})
"""Fields whose values are texts even if they look like numbers."""


def value_of(text: str) -> Any:
    """Returns the value of a field: a number, a Boolean, a list or a text."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def event_of(text: str) -> dict[str, Any]:
    """Returns the fields of one event of a story."""
    match = EVENT.fullmatch(text.strip())
    assert match, text
    fields = PLACE | KINDS.get(match["kind"], {"event": match["kind"]})
    for word in (match["rest"] or "").split():
        name, equals, value = word.partition("=")
        if equals:
            fields[name] = value_of(value) if name not in TEXTS else value
        elif name.startswith("!"):
            fields.pop(name[1:])
        else:
            fields["request"] = name
    after, before = (round(float(each) * MS) for each in (match["after"], match["before"] or match["after"]))
    return fields | {"after_ns": after + START_MS * MS, "before_ns": before + START_MS * MS}


@frozen
class Story:
    """A small history and the clauses that the judge reports for it."""

    title: str
    expected: tuple[str, ...]
    verdict: str
    options: Mapping[str, str]
    events: Sequence[dict[str, Any]]
    text: str
    file: str = ""

    @property
    def sources(self) -> list[str]:
        return list(dict.fromkeys(["s", *(event["source"] for event in self.events)]))

    @property
    def meta(self) -> Meta:
        clock: Any = "unix" if "unix" in self.options else "monotonic"
        limit = int(self.options.get("limit", -1))
        sources = [Source(name=name, clock=clock, hold_limit=limit) for name in self.sources]
        return Meta(format_version=FORMAT_VERSION, sources=sources, policy=self.options.get("policy", ""))

    def told(self) -> list[Event]:
        """Returns the events in the order of the story, numbered in each source by time."""
        events = [*self._ends(), *self.events]
        by_time = sorted(
            range(len(events)),
            key=lambda at: (
                events[at]["source"],
                events[at].get("rank", 1),
                "as_told" not in self.options and events[at]["after_ns"],
            ),
        )
        counts: dict[str, int] = {}
        for at in by_time:
            source = events[at]["source"]
            events[at] = events[at] | {"sequence": counts.get(source, 0)}
            counts[source] = counts.get(source, 0) + 1
        return [Event(**{name: value for name, value in event.items() if name != "rank"}) for event in events]

    def _ends(self) -> Iterator[dict[str, Any]]:
        """Iterate over the start and end of each source, and an event that only a source in the broker can record."""
        for source in self.sources:
            own = [event["after_ns"] for event in self.events if event["source"] == source]
            end = self._moment(source, "ends", LONG_MS)
            start = self._moment(source, "begins", (min([START_MS * MS, end, *own]) - MS) / MS - START_MS)
            if source == "s" and "unsteady" in self.options:
                start = max([end, *own])
            common = {"source": source, "broker": "b"}
            yield common | {"event": "source_started", "after_ns": start, "before_ns": start, "rank": 0}
            if "outside" not in self.options:
                seen = {"event": "make_visible", "topic": "Z", "queue": 0, "visible_end": 0}
                yield common | seen | {"after_ns": start, "before_ns": start}
            yield common | {"event": "source_stopped", "after_ns": end, "before_ns": end, "rank": 2}

    def _moment(self, source: str, name: str, otherwise_ms: float) -> int:
        """Returns the time in ns at which a source begins or ends."""
        option = self.options.get(name if source == "s" else f"{source}.{name}", otherwise_ms)
        return START_MS * MS + round(float(option) * MS)


def stories(file: Path) -> Iterator[Story]:
    """Iterate over the stories of a file, each with the title above it."""
    title = ""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            title = line.lstrip("# ")
        elif line:
            yield story(line, title, file.stem)


def story(line: str, title: str = "", file: str = "") -> Story:
    """Parse a story from one line."""
    clauses, _colon, rest = line.partition(": ")
    options: dict[str, str] = {}
    if rest.startswith("["):
        words, _bracket, rest = rest[1:].partition("] ")
        options = {name: value for name, _equals, value in (word.partition("=") for word in words.split())}
    expected = tuple(each for each in clauses.split(", ") if each not in {"valid", "unknown"})
    is_certain = any(not each.endswith("?") for each in expected)
    verdict = "invalid" if is_certain else "unknown" if expected else clauses
    events = [event_of(text) for text in rest.split(";") if text.strip()]
    return Story(title, expected, verdict, options, events, line, file)


def write_story(one: Story, directory: Path) -> Path:
    """Write a story as a history of one part; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    encoder = msgspec.json.Encoder()
    (directory / META_FILE).write_bytes(encoder.encode(one.meta))
    (directory / "part-0.ndjson").write_bytes(encoder.encode_lines(one.told()))
    return directory


def clauses_of(result: Result) -> list[str]:
    """Returns the clauses of a result's findings and of their consequences, sorted."""
    told = {(one.clause, one.verdict) for one in result.findings}
    told |= {(each.clause, each.verdict) for one in result.findings for each in one.follows}
    return sorted(clause + "?" * (verdict == "unknown") for clause, verdict in told)


def together(several: Sequence[Story]) -> tuple[Meta, list[Event]]:
    """Returns one history of several stories, each with its own broker, sources, connections, requests and ids."""
    sources, events = list[Source](), list[Event]()
    for number, one in enumerate(several):
        prefix = f"{number}-"
        sources += [msgspec.structs.replace(source, name=prefix + source.name) for source in one.meta.sources]
        for event in one.told():
            named = {name: prefix + getattr(event, name) for name in NAMES if getattr(event, name)}
            ids = [each and each + IDS_APART * number for each in event.ids]
            events.append(msgspec.structs.replace(event, ids=ids, **named))
    return Meta(format_version=FORMAT_VERSION, sources=sources, policy=several[0].meta.policy), events


NAMES: Final = ("source", "broker", "connection", "request")
"""Fields that get different values for each story, so that one history can contain many stories."""
IDS_APART: Final = 1_000
"""The difference between the message ids of two stories in one history. The id 0 means that the id is unknown."""


def clauses_by_story(result: Result, count: int) -> list[list[str]]:
    """Returns the reported clauses of each of `count` stories in one history."""
    told: list[set[str]] = [set() for _ in range(count)]
    for one in result.findings:
        number = int(one.evidence[0]["source"].partition("-")[0])
        told[number].add(one.clause + "?" * (one.verdict == "unknown"))
        told[number] |= {each.clause + "?" * (each.verdict == "unknown") for each in one.follows}
    return [sorted(each) for each in told]
