"""commit_never_regresses: a group is told no offset below one that it had certainly committed.

A commit comes with a pull (`commit_offset`) or by itself (request 15), and what became of it shows when the group asks
(request 14). An explicit commit may put the offset back; one that came with a pull may not, since pulls overtake each
other (RocketMQ commits whichever comes last). So the offset told is wrong if a greater one was certainly committed by
then, unless an explicit commit of no more than what was told can have come after that. A commit that nobody
answered, as one-way ones are, counts as such an excuse and as nothing else. All within one life of one observer.

Only histories in which a group asks are looked at, and of these commits, questions and answers are held in memory.
Once a group or topic was deleted, or its offsets were put elsewhere on the broker (207, 215, 222, 314), nothing earlier
counts. Leaves out a group that is told that it has no offset, and slaves.

Source: `PullMessageProcessor` and `ConsumerOffsetManager.commitOffset` (4.9.8), the property of the law of this name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from attrs import frozen
from numpy.typing import NDArray

from longpoll_judge.arrow import compute
from longpoll_judge.clause import PULL_RESULTS
from longpoll_judge.lookup import is_one_of
from longpoll_judge.queue_log import NEVER
from longpoll_judge.result import COMMIT_NEVER_REGRESSES, Finding
from longpoll_judge.schema import EVENT_SCHEMA, REQUIRED, coded, event_dict
from longpoll_judge.source import History, read_slice
from longpoll_judge.steps import MS
from longpoll_judge.survey import QUERY_CONSUMER_OFFSET, UNSEEN, Context

UPDATE_CONSUMER_OFFSET: Final = 15
RESETS: Final = (207, 215, 222, 314)
"""Requests after which a group's offset may be any."""
SUCCESS: Final = 0
COLUMNS: Final = (
    *(*REQUIRED, "broker", "topic", "queue", "request", "connection"),
    *("code", "group", "offset", "commit_offset", "cause"),
)
"""The fields that are read, or shown as evidence."""
_NOTHING: Final = EVENT_SCHEMA.empty_table().select(COLUMNS)
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


def judge_commits(history: History, context: Context) -> list[Finding]:
    """Judge what the groups of all histories were told of their offsets."""
    asked, answers = _exchanges(history)
    is_reset = compute.is_in(asked["code"], value_set=pa.array(RESETS, pa.int64()))
    resets = [_Reset.of(row) for row in asked.filter(is_reset).to_pylist()]
    groups = _groups(asked.filter(compute.invert(is_reset)), answers)
    return [finding for group in groups for finding in group.findings(resets, context)]


@frozen
class _Reset:
    """A request after which the offsets of a group, a topic or both may be any; empty for all."""

    source: str
    group: str
    topic: str
    after_ns: int

    @classmethod
    def of(cls, event: dict[str, Any]) -> _Reset:
        return cls(event["source"], event["group"], event["topic"], event["after_ns"])

    def is_about(self, event: dict[str, Any]) -> bool:
        """Whether the offset that the event is about may be another after it."""
        same_group, same_topic = self.group in {"", event["group"]}, self.topic in {"", event["topic"]}
        return self.source == event["source"] and same_group and same_topic


def _exchanges(history: History) -> tuple[pa.Table, pa.Table]:
    """The requests that commit or ask for an offset, in order, and the answers to all requests."""
    asked, answers = [_NOTHING], [_NOTHING]
    for part in history.slices:
        table, _damages = read_slice(part, COLUMNS)
        table = table.select(COLUMNS)
        names = table["event"].cast(pa.string())
        codes = pa.array((QUERY_CONSUMER_OFFSET, *RESETS), pa.int64())
        about = compute.or_(
            compute.greater_equal(table["commit_offset"], 0), compute.is_in(table["code"], value_set=codes)
        )
        asked.append(table.filter(compute.and_(compute.equal(names, "request_received"), about)))
        answers.append(table.filter(compute.equal(names, "answer_sent")))
    together = pa.concat_tables(asked).unify_dictionaries()
    order = [(name, "ascending") for name in ("after_ns", "before_ns", "source", "sequence")]
    plain = pa.table(
        {name: together[name].cast(pa.string()) if name == "source" else together[name] for name, _ in order}
    )
    return together.take(compute.sort_indices(plain, sort_keys=order)), pa.concat_tables(answers).unify_dictionaries()


@frozen(eq=False)
class _Group:
    """What one group committed and was told of one queue in one life of an observer, in the order of its requests."""

    asked: pa.Table
    answers: pa.Table
    answer: Integers
    """By request the row of its answer; -1 for none."""

    def findings(self, resets: Iterable[_Reset], context: Context) -> Iterator[Finding]:
        """One for each question that was answered with too low an offset."""
        (place,) = self.asked.slice(0, 1).to_pylist()
        reset_ns = np.array([reset.after_ns for reset in resets if reset.is_about(place)], dtype=np.int64)
        code = self.asked["code"].to_numpy()
        after_ns = self.asked["after_ns"].to_numpy()
        value = self.asked["commit_offset"].to_numpy()
        done_ns = np.where(self.answer >= 0, self.answers["before_ns"].to_numpy()[self.answer], NEVER)
        answer_code = np.where(self.answer >= 0, self.answers["code"].to_numpy()[self.answer], -1)
        is_explicit = code == UPDATE_CONSUMER_OFFSET
        took = np.where(is_explicit, answer_code == SUCCESS, is_one_of(answer_code, PULL_RESULTS)) & (value >= 0)
        for question in np.flatnonzero((code == QUERY_CONSUMER_OFFSET) & (answer_code == SUCCESS)).tolist():
            told = int(self.answers["offset"][int(self.answer[question])].as_py())
            greater = np.flatnonzero(took & (value > told) & (done_ns < after_ns[question]))
            if told < 0 or not len(greater):
                continue
            commit = int(greater[np.argmax(after_ns[greater])])
            excuses = is_explicit & (value <= told) & (after_ns <= done_ns[question]) & (done_ns >= after_ns[commit])
            if not excuses.any() and not (reset_ns <= done_ns[question]).any():
                yield self._finding(commit, question, told, context)

    def _finding(self, commit: int, question: int, told: int, context: Context) -> Finding:
        rows = [(self.asked, commit), (self.answers, int(self.answer[commit]))]
        rows += [(self.asked, question), (self.answers, int(self.answer[question]))]
        shown = [event_dict(table.slice(row, 1).to_pylist()[0]) for table, row in rows]
        asks: dict[str, Any] = shown[2]
        facts = context.sources.get(asks["source"], UNSEEN)
        window = np.array([shown[0]["after_ns"], shown[3]["before_ns"]], dtype=np.int64)
        is_whole = not context.log_holes(asks.get("broker", "")).touch(window[:1], window[1:])[0]
        return Finding(
            property=COMMIT_NEVER_REGRESSES,
            clause="commit.told.least",
            verdict="violated" if is_whole and facts.is_steady else "unknown",
            topic=asks.get("topic", ""),
            queue=asks.get("queue", -1),
            request=asks.get("request", ""),
            window_start_ms=shown[0]["after_ns"] / MS,
            window_end_ms=shown[3]["before_ns"] / MS,
            why=(
                f"group {asks.get('group', '')!r} was told offset {told}, although {shown[0]['commit_offset']} was "
                "committed before it asked, and nothing but a pull's older commit can have put that back"
            ),
            evidence=shown,
        )


def _groups(asked: pa.Table, answers: pa.Table) -> Iterator[_Group]:
    """The exchanges of each group, queue and source in which the group asks for its offset."""
    keys = _texts(asked, "source", "request")
    found = compute.index_in(keys, value_set=_texts(answers, "source", "request"))
    has_request = compute.not_equal(asked["request"].cast(pa.string()), "")
    answer = np.where(has_request.to_numpy(), found.fill_null(-1).to_numpy(), -1).astype(np.int64)
    places = _texts(asked, "source", "broker", "topic", "queue", "group").dictionary_encode()
    codes, _names = coded(pa.table({"place": places}), "place")
    is_question = asked["code"].to_numpy() == QUERY_CONSUMER_OFFSET
    for code in np.unique(codes[is_question]).tolist():
        rows = np.flatnonzero(codes == code)
        yield _Group(asked.take(pa.array(rows)), answers, answer[rows])


def _texts(table: pa.Table, *names: str) -> pa.Array:
    """Several columns as one text a row."""
    columns = [table[name].cast(pa.string()).combine_chunks() for name in names]
    return compute.binary_join_element_wise(*columns, "\0")
