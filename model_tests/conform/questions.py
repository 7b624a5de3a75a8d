"""Requests to a broker, called questions, whose answers are recorded: `python -m model_tests.conform.questions`.

A question is a vector without answers. The package contains the answers of Apache RocketMQ 4.9.7 and 5.5.0, recorded
with `longpoll conform --vectors FILE --record FILE`. A test compares the questions with these recordings. The questions
here have numbers from 500 on. Questions below number 500 exist only in the recordings.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

Step = dict[str, Any]
Question = dict[str, Any]
FIRST: Final = 500
PROMPT: Final[Mapping[str, Any]] = {"kind": "immediate", "not_before_ms": 0, "not_after_ms": 900}
HASH_ZERO: Final = "f5a5a608"
"""A tag whose hash is 0, which is also the hash of a message without a tag."""
HASH_MIN: Final = "polygenelubricants"
"""A tag whose hash is the least 32-bit integer."""
BODY: Final = "m"
PROPERTIES: Final[Sequence[Mapping[str, str]]] = (
    {},
    {"n": "5"},
    {"n": "-5", "s": "abc"},
    {"n": "abc", "s": "it's"},
    {"n": "5.0", "b": "true"},
    {"n": "99999999999"},
    {"n": "9223372036854775808"},
    {"n": "", "s": ""},
    {"b": "TRUE", "s": "ABC"},
    {"n": "5", "m": "5", "s": "abc"},
    {"n": "5", "m": "6", "b": "false"},
    {"N": "5", "s": "5"},
    {"n": " 5", "s": "null"},
)
"""Properties of the messages for every expression: missing, not numeric, or too large for a number."""
EXPRESSIONS: Final[Mapping[str, Sequence[str]]] = {
    "missing properties": (
        "n IS NULL", "n IS NOT NULL", "NOT n IS NULL", "n = m", "n <> m", "n = 5", "5 = n", "n <> 5", "n > m", "m >= n",
    ),
    "BETWEEN": (
        "n BETWEEN 1 AND 5", "n NOT BETWEEN 1 AND 5", "n BETWEEN 5 AND 5", "n BETWEEN -5 AND 5",
        "n BETWEEN 1.5 AND 5.5", "n BETWEEN 5 AND 1", "n BETWEEN m AND 9", "s BETWEEN 'a' AND 'b'",
    ),
    "IN": (
        "s IN ('abc')", "s IN ('abc', 'ABC')", "s NOT IN ('abc')", "n IN ('5')", "n IN (5)", "s IN ()",
        "s IN ('abc', 'abc')",
    ),
    "what is not in the language": (
        "s LIKE 'a%'", "n + 1 = 6", "n != 5", "s > 'a'", "n = 0x5", "n == 5", "f(n) = 5",
    ),
    "texts and comments": (
        "s = 'it''s'", "s = 'abc' -- the rest\n", "/* all */ s = 'abc'", 's = "abc"', "'abc' = s", "s = ''", "s = 'abc",
    ),
    "numbers": (
        "n > 2147483647", "n > 2147483648", "n = 99999999999", "n < 99999999999L", "n > 9223372036854775807",
        "n = 9223372036854775808", "n > 1e1", "n > .5", "n = 5.0", "n = 5L", "n > -6", "n = 0.0",
    ),
    "kinds of values": (
        "s > 5", "s = TRUE", "b = TRUE", "b = FALSE", "b <> TRUE", "b", "NOT b", "b = 'true'", "n = '5'", "TRUE = b",
    ),
    "three values": (
        "n > 3 OR TRUE", "TRUE OR n > 3", "n > 3 AND FALSE", "FALSE AND n > 3", "NOT (n > 3)", "n > 3 OR s IS NULL",
        "NOT n = 5", "m = 5 OR n = 5", "m = 5 AND n = 5",
    ),
    "precedence": (
        "n = 5 OR m = 6 AND s = 'abc'", "(n = 5 OR m = 6) AND s = 'abc'", "NOT b = TRUE OR n = 5", "n = 5 anything",
        "TRUE", "FALSE", "n=5 and s is not null", "N = 5", "((n = 5))", "NOT NOT b",
    ),
}  # fmt: skip
"""The feature that the expressions test -> the expressions."""


class _Questions:
    def __init__(self) -> None:
        self._numbers = itertools.count(FIRST)

    def ask(self, area: str, title: str, profile: str, make: Any) -> Question:
        number = next(self._numbers)
        parts = {"setup": [], "timing": PROMPT, **make(f"tc{number}", f"gc{number}")}
        serialize = "ROCKETMQ" if number % 3 == 0 else "JSON"
        return {"id": f"{area}-{number}", "title": title, "profile": profile, "serialize": serialize, **parts}


# -- requests --------------------------------------------------------------------------------------------------------


def topic_made(topic: str) -> Step:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    return {"code": 17, "extFields": fields}


def send(topic: str, fields: Mapping[str, str], *, code: int = 310, body: Step | None = None) -> Step:
    usual = {
        "a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "i": "",
        "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return {"conn": "other", "code": code, "extFields": {**usual, **fields}, "body": body or {"text": BODY}}


def batch(topic: str, properties: Sequence[Mapping[str, str]], **fields: str) -> Step:
    messages = [{"body": str(number), "properties": dict(each)} for number, each in enumerate(properties)]
    return send(topic, {"m": "true", **fields}, code=320, body={"batch": messages})


def until(topic: str, count: int) -> Step:
    return {"until_max_offset": {"topic": topic, "queueId": 0, "offset": count}}


def filled(topic: str, properties: Sequence[Mapping[str, str]]) -> list[Step]:
    return [topic_made(topic), batch(topic, properties), until(topic, len(properties))]


def heartbeat(topic: str, group: str, version: int, expression: str, kind: str = "SQL92") -> Step:
    subscription = {
        "classFilterMode": False, "topic": topic, "subString": expression, "tagsSet": [], "codeSet": [],
        "subVersion": version, "expressionType": kind,
    }  # fmt: skip
    consumer = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False, "subscriptionDataSet": [subscription],
    }  # fmt: skip
    told = {"clientID": "c1", "producerDataSet": [], "consumerDataSet": [consumer]}
    return {"conn": "main", "code": 34, "extFields": {}, "body": {"json": told}}


def pull(topic: str, group: str, **fields: str) -> Step:
    usual = {
        "consumerGroup": group, "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4",
        "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*",
        "expressionType": "TAG",
    }  # fmt: skip
    return {"conn": "main", "code": 11, "extFields": usual | fields}


# -- questions -------------------------------------------------------------------------------------------------------


def _versions(questions: _Questions) -> Iterator[Question]:
    """Pulls whose subscription version differs from the version that the broker knows."""
    two = ({"idx": "0"}, {"idx": "1"})

    def tags(beats: Sequence[int], asked: int, **fields: str) -> Any:
        return lambda topic, group: {
            "setup": [*filled(topic, two), *(heartbeat(topic, group, beat, "*", "TAG") for beat in beats)],
            "request": pull(topic, group, sysFlag="0", subVersion=str(asked), **fields),
        }

    hold = {"sysFlag": "2", "suspendTimeoutMillis": "5000", "queueOffset": "2"}
    yield questions.ask("pull", "heartbeat of version 1, asked for 2", "default", tags([1], 2))
    yield questions.ask("pull", "heartbeats of 1 and 2, asked for 2", "default", tags([1, 2], 2))
    yield questions.ask("pull", "heartbeats of 2 and 1, asked for 3", "default", tags([2, 1], 3))
    yield questions.ask("pull", "version 1, asked for 2 from beyond the end", "default", tags([1], 2, queueOffset="9"))
    yield questions.ask("pull", "version 1, asked for 2 of no queue", "default", tags([1], 2, queueId="9"))
    yield questions.ask(
        "pull", "version 1, asked for 2 with a hold", "default",
        lambda topic, group: {
            "setup": [*filled(topic, two), heartbeat(topic, group, 1, "*", "TAG")],
            "request": pull(topic, group, subVersion="2", **hold),
        },
    )  # fmt: skip

    def sql(beats: Sequence[tuple[int, str]], asked: int) -> Any:
        return lambda topic, group: {
            "setup": [*filled(topic, PROPERTIES), *(heartbeat(topic, group, *beat) for beat in beats)],
            "request": pull(topic, group, sysFlag="0", subVersion=str(asked)),
        }

    good = (1, "n = 5")
    yield questions.ask("sql", "an expression, then an empty one, asked for that", "sql", sql([good, (2, "")], 2))
    yield questions.ask("sql", "an expression, then an empty one, asked for the first", "sql", sql([good, (2, "")], 1))
    yield questions.ask("sql", "an expression, then a broken one, asked for that", "sql", sql([good, (2, "n = ")], 2))
    yield questions.ask(
        "sql", "a broken one, then an expression, asked for that", "sql", sql([(1, "n = "), (2, "n = 5")], 2)
    )
    yield questions.ask("sql", "an expression of version 1, asked for 2", "sql", sql([good], 2))
    yield questions.ask(
        "sql", "an expression, then another, asked for the newer", "sql", sql([good, (2, "s = 'abc'")], 2)
    )


def _expressions(questions: _Questions) -> Iterator[Question]:
    def of(expression: str) -> Any:
        return lambda topic, group: {
            "setup": [*filled(topic, PROPERTIES), heartbeat(topic, group, 1, expression)],
            "request": pull(topic, group, sysFlag="0", subVersion="1"),
        }

    for title, expressions in EXPRESSIONS.items():
        for expression in expressions:
            yield questions.ask("sql", f"{title}: {expression.strip()}", "sql", of(expression))


def _tags(questions: _Questions) -> Iterator[Question]:
    """Pulls of tags that have equal hashes, or the hash of a message without a tag."""

    def of(tags: Sequence[str | None], expression: str) -> Any:
        properties = [{} if tag is None else {"TAGS": tag} for tag in tags]
        return lambda topic, group: {
            "setup": filled(topic, properties),
            "request": pull(topic, group, subscription=expression),
        }

    alike = ("AaAa", "BBBB", "AaBB", "BBAa", "other")
    yield questions.ask("pull", "four tags of one hash, one asked", "default", of(alike, "AaBB"))
    yield questions.ask("pull", "four tags of one hash, two asked", "default", of(alike, "AaBB || BBBB"))
    yield questions.ask(
        "pull", "a tag of hash 0 asked: messages without tags", "default", of((None, "a", HASH_ZERO), HASH_ZERO)
    )
    yield questions.ask("pull", "a tag whose hash is the least number", "default", of((HASH_MIN, "a", None), HASH_MIN))
    yield questions.ask("pull", "messages without tags, a tag asked", "default", of((None, "a", None), "a"))
    yield questions.ask("pull", "an empty tag stored, all asked", "default", of(("", "a"), "*"))
    yield questions.ask("pull", "an empty tag stored, a tag asked", "default", of(("", "a"), "a"))
    yield questions.ask("pull", "tags not of ASCII", "default", of(("grün", "gruen", "\u7ea2"), "grün || \u7ea2"))


def _sends(questions: _Questions) -> Iterator[Question]:
    def seen(topic: str, count: int) -> list[Step]:
        return [{"sleep_ms": 100}, until(topic, count), pull(topic, "GSEE")]

    def one(count: int = 1, **fields: str) -> Any:
        return lambda topic, _group: {
            "setup": [topic_made(topic)],
            "request": send(topic, {"i": f"UNIQ_KEY\x01UK-{topic}\x02", **fields}),
            "after": seen(topic, count),
        }

    for flag, title in (
        (1, "compressed"),
        (2, "several tags"),
        (3, "both"),
        (8, "committed"),
        (12, "rolled back"),
        (64, "a bit that nobody has"),
    ):
        yield questions.ask("send", f"system flag {flag}: {title}", "default", one(0 if flag == 12 else 1, f=str(flag)))
    yield questions.ask("send", "a message's own flag", "default", one(h="7"))
    yield questions.ask("send", "consumed again and again", "default", one(j="3"))

    def many(properties: Sequence[Mapping[str, str]], count: int, **fields: str) -> Any:
        return lambda topic, _group: {
            "setup": [topic_made(topic)], "request": batch(topic, properties, **fields), "after": seen(topic, count),
        }  # fmt: skip

    def raw(body: Step, count: int, *, code: int = 320, **fields: str) -> Any:
        return lambda topic, _group: {
            "setup": [topic_made(topic)],
            "request": send(topic, {"i": f"UNIQ_KEY\x01UK-{topic}\x02", **fields}, code=code, body=body),
            "after": seen(topic, count),
        }

    yield questions.ask("send", "a batch of one", "default", many([{"TAGS": "a"}], 1))
    yield questions.ask(
        "send", "a batch with properties of its own", "default", many([{"k": "v"}, {}], 2, i="own\x01yes\x02")
    )
    yield questions.ask("send", "a batch with system flag 1", "default", many([{}, {}], 2, f="1"))
    yield questions.ask(
        "send", "a batch whose messages have keys", "default", many([{"UNIQ_KEY": "u0"}, {"UNIQ_KEY": "u1"}], 2)
    )
    yield questions.ask(
        "send", "a batch to queue -1", "default",
        lambda topic, _group: {
            "setup": [topic_made(topic)], "request": batch(topic, [{}, {}], e="-1"), "normalised": ["ext.queueId"],
        },
    )  # fmt: skip
    yield questions.ask(
        "send", "a batch that is said to be none", "default", raw({"batch": [{"body": "x"}]}, 1, m="false")
    )
    yield questions.ask(
        "send",
        "a message that is said to be a batch",
        "default",
        raw({"batch": [{"body": "x"}]}, 1, code=310, m="true"),
    )


def questions() -> list[Question]:
    """Return all questions in the order of their numbers."""
    numbered = _Questions()
    return [*_versions(numbered), *_expressions(numbered), *_tags(numbered), *_sends(numbered)]


if __name__ == "__main__":
    for question in questions():
        sys.stdout.write(json.dumps(question, ensure_ascii=False) + "\n")
