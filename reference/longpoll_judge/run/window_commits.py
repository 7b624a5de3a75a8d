"""Finds the groups whose queries certainly return the committed offset, so that `rules.commits` judges only the others.

A query must return an offset that may have been committed last, and none below one that was certainly committed. The
watch compares it with the requests of its split and the last ones before. Each query and each separate commit must get
its answer in time. The watch suspects every other group and queue, and `rules.commits` judges it. A request that may
move the offsets of several groups makes it suspect all of them.

Memory holds the exchanges of a split, and a few for each group and queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from attrs import define, field
from numpy.typing import NDArray

from longpoll_judge.columns.batch import GROUP_KEY, queue_numbers
from longpoll_judge.columns.keys import NO_KEYS, KeyFile, Keys, request_keys
from longpoll_judge.columns.lookup import Integers, is_one_of
from longpoll_judge.columns.queue_log import NEVER
from longpoll_judge.contract.clause import PULL_RESULTS, UNHELD_MS
from longpoll_judge.evidence.survey import QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET, Context
from longpoll_judge.read.schema import are_named, coded, coded_texts
from longpoll_judge.rules.commits import OFFSET_CODES, RESETS, SUCCESS
from longpoll_judge.rules.cross_queue import WEIGHT, Tables, first_of, hashes, highest_before, rows_where
from longpoll_judge.rules.queue_columns import MS, PULL_CODES
from longpoll_judge.run.window_sends import by_source

GroupName = tuple[str, str, int, str]
"""Broker, topic, queue and group."""
Rows = dict[str, NDArray[Any]]
KEPT: Final = 4
"""How many requests of a group and queue are kept for the next split, in addition to those without an answer."""
WAITING_MAX: Final = 1_000_000
_NUMBERS: Final = {
    "most": -1,
    "fixed_ns": -NEVER,
    "asked_ns": -NEVER,
    "suspected": 0,
    "questions": 0,
    "answered": 0,
}
"""By group and queue, numbers of the dropped requests, with their initial values: the highest committed offset, and the
last times of a query or a separate commit, and of a query. Then a flag, and counts."""


@define(eq=False)
class CommitWatch:
    """Watches the committed offsets of a history, split by split."""

    context: Context
    received: KeyFile
    """Collects the keys of all requests."""
    is_over: bool = False
    """All groups are suspected."""
    _names: dict[GroupName, int] = field(factory=dict)
    _numbers: dict[str, Integers] = field(factory=lambda: {name: np.empty(0, dtype=np.int64) for name in _NUMBERS})
    _kept: Rows = field(factory=dict)
    _orphans: Keys = field(factory=NO_KEYS.copy)
    """The keys of answers whose requests have not come yet."""

    def see(self, table: pa.Table) -> None:
        """Take the events of a split."""
        self.is_over |= bool(self.context.begun_anew or self.context.restarts)
        for _source, part in by_source(table):
            if not self.is_over:
                self._see(part)

    def _see(self, table: pa.Table) -> None:
        code, commits = table["code"].to_numpy(), table["commit_offset"].to_numpy()
        requests, request_names = coded_texts(table, "request")
        named = are_named(request_names)[requests]
        is_receipt, is_answer = rows_where(table, "request_received"), rows_where(table, "answer_sent") & named
        keys = request_keys(table, np.arange(len(table)))
        self.received.put(keys[is_receipt & named])
        is_about = is_one_of(code, OFFSET_CODES)
        rows = np.flatnonzero(is_receipt & (is_about | (is_one_of(code, PULL_CODES) & (commits >= 0))))
        groups, group_names = coded_texts(table, "group")
        topics, topic_names = coded_texts(table, "topic")
        is_bad = is_about & ~(named & are_named(group_names)[groups] & are_named(topic_names)[topics])
        is_bad |= is_about & (table["queue"].to_numpy() < 0)
        is_bad |= (code == UPDATE_CONSUMER_OFFSET) & (commits < 0)
        self.is_over |= bool((is_receipt & (is_bad | is_one_of(code, RESETS))).any())
        if self.is_over:
            return
        group = self._grouped(table, rows, groups, group_names.to_pylist())
        new: Rows = {
            "group": group,
            "key": keys[rows],
            "named": named[rows],
            "code": code[rows],
            "value": np.where(is_one_of(code[rows], (*PULL_CODES, UPDATE_CONSUMER_OFFSET)), commits[rows], -1),
            "after_ns": table["after_ns"].to_numpy()[rows],
            "queue": table["queue"].to_numpy()[rows],
            **{name: hashes(table, name, rows) for name in ("broker", "topic")},
            "done_ns": np.full(len(rows), NEVER, dtype=np.int64),
            "answer": np.full(len(rows), -1, dtype=np.int64),
            "told": np.full(len(rows), -1, dtype=np.int64),
        }
        # An answer that came in an earlier split than its request is gone by now.
        self.is_over |= bool(np.isin(new["key"][new["named"]], self._orphans).any())
        has_request = np.bincount(requests[is_receipt], minlength=len(request_names)) > 0
        orphans = np.setdiff1d(keys[is_answer & ~has_request[requests]], self._kept.get("key", NO_KEYS))
        self._orphans = np.concatenate((self._orphans, orphans))
        self.is_over |= len(self._orphans) > WAITING_MAX
        self._judge(self._answered(new, table, np.flatnonzero(is_answer), keys))

    def _grouped(self, table: pa.Table, rows: Integers, groups: NDArray[Any], group_names: list[str]) -> Integers:
        """The number of each row's group and queue."""
        numbers, firsts = queue_numbers(table)
        queues = [(*name.values(),) for name in table.select(GROUP_KEY).take(pa.array(firsts)).to_pylist()]
        combined = numbers[rows].astype(np.int64) * len(group_names) + groups[rows]
        used, inverse = np.unique(combined, return_inverse=True)
        names = [(*queues[each // len(group_names)], group_names[each % len(group_names)]) for each in used.tolist()]
        found = np.array([self._names.setdefault(name, len(self._names)) for name in names], dtype=np.int64)[inverse]
        more = len(self._names) - len(self._numbers["most"])
        for name, none in _NUMBERS.items():
            self._numbers[name] = np.append(self._numbers[name], np.full(more, none, dtype=np.int64))
        return found

    def _answered(self, new: Rows, table: pa.Table, answers: Integers, keys: NDArray[np.uint64]) -> Rows:
        """The kept and the new requests, with the first answer to each."""
        rows = {name: np.concatenate((self._kept[name], column)) for name, column in new.items()} if self._kept else new
        asked = np.flatnonzero((rows["done_ns"] == NEVER) & rows["named"])
        found = first_of(rows["key"][asked], keys[answers])
        asked, answer = asked[found >= 0], answers[found[found >= 0]]
        columns = {name: table[name].to_numpy()[answer] for name in ("before_ns", "code", "offset", "queue")}
        has_queue = columns["queue"] >= 0
        is_other = has_queue & (columns["queue"] != rows["queue"][asked])
        for name in ("broker", "topic"):
            own, told = rows[name][asked], hashes(table, name, answer)
            is_other |= (told != own) & (has_queue | ((told != 0) & (own != 0)))
        self.is_over |= bool(is_other.any())
        rows["done_ns"][asked], rows["answer"][asked] = columns["before_ns"], columns["code"]
        rows["told"][asked] = np.where(columns["code"] == SUCCESS, columns["offset"], -1)
        # An earlier split had a query that came after this answer, and was judged without it.
        is_early = columns["before_ns"] < self._numbers["asked_ns"][rows["group"][asked]]
        self._numbers["suspected"][rows["group"][asked[is_early]]] = 1
        rows["fresh"] = np.zeros(len(rows["key"]), dtype=np.bool_)
        rows["fresh"][asked] = True
        return rows

    def _judge(self, rows: Rows) -> None:
        """Judge the queries and separate commits that this split answers, and keep what the next one needs."""
        group, code, numbers = rows["group"], rows["code"], self._numbers
        is_about, is_question = is_one_of(code, OFFSET_CODES), code == QUERY_CONSUMER_OFFSET
        is_explicit = code == UPDATE_CONSUMER_OFFSET
        took = np.where(is_explicit, rows["answer"] == SUCCESS, is_one_of(rows["answer"], PULL_RESULTS))
        may = took | ~is_explicit
        fresh = np.flatnonzero(rows.pop("fresh") & is_about)
        is_late = rows["done_ns"][fresh] - rows["after_ns"][fresh] > UNHELD_MS * MS + self.context.late_ns
        numbers["suspected"][group[fresh[is_late | (rows["answer"][fresh] != SUCCESS)]]] = 1
        np.add.at(numbers["answered"], group[fresh], 1)
        asked = fresh[is_question[fresh]]
        np.add.at(numbers["questions"], group[asked], 1)
        keys, told = group.astype(np.uint64), rows["told"][asked]
        is_mine = np.bincount(group[asked], minlength=len(numbers["most"]))[group] > 0
        sure, likely, fixed = (np.flatnonzero(is_mine & flags) for flags in (took, may, is_about))

        def last(which: Integers, ended_ns: Integers, value: Integers, moment_ns: Integers) -> Integers:
            found = highest_before(keys[which], ended_ns[which], value[which], keys[asked], moment_ns)
            return np.append(value[which], -NEVER)[found]

        most = np.maximum(
            last(sure, rows["done_ns"], rows["value"], rows["after_ns"][asked]), numbers["most"][group[asked]]
        )
        since_ns = last(fixed, rows["done_ns"], rows["after_ns"], rows["after_ns"][asked])
        since_ns = np.maximum(since_ns, numbers["fixed_ns"][group[asked]])
        of_value = keys[likely] * WEIGHT + rows["value"][likely].astype(np.uint64)
        wanted = keys[asked] * WEIGHT + told.astype(np.uint64)
        written = highest_before(
            of_value, rows["after_ns"][likely], rows["done_ns"][likely], wanted, rows["done_ns"][asked] + 1
        )
        is_written = (written >= 0) & (np.append(rows["done_ns"][likely], -NEVER)[written] >= since_ns)
        numbers["suspected"][group[asked[(told < 0) | (most > told) | ~is_written]]] = 1
        np.maximum.at(numbers["asked_ns"], group[asked], rows["after_ns"][asked])
        self._keep(rows, is_about)

    def _keep(self, rows: Rows, is_about: NDArray[np.bool_]) -> None:
        """Keep the last requests of each group and queue, and all without an answer."""
        group, numbers = rows["group"], self._numbers
        order = np.argsort(group, kind="stable")
        ends = np.searchsorted(group[order], group[order], side="right")
        stays = np.zeros(len(group), dtype=np.bool_)
        stays[order] = ends - np.arange(len(order)) <= KEPT
        stays |= (rows["done_ns"] == NEVER) & rows["named"]
        gone = np.flatnonzero(~stays)
        np.maximum.at(numbers["most"], group[gone], rows["value"][gone])
        fixed = gone[is_about[gone]]
        np.maximum.at(numbers["fixed_ns"], group[fixed], rows["after_ns"][fixed])
        self._kept = {name: column[stays] for name, column in rows.items()}
        self.is_over |= len(self._kept["key"]) > WAITING_MAX

    def finish(self) -> tuple[set[GroupName], int, int] | None:
        """The suspected groups, and how many queries and requests about offsets the others have; None for all."""
        if self._kept:
            open_ = is_one_of(self._kept["code"], OFFSET_CODES) & (self._kept["done_ns"] == NEVER)
            self._numbers["suspected"][self._kept["group"][open_]] = 1
        if self.is_over or len(self.received.repeated(NO_KEYS)):
            return None
        is_clear = self._numbers["suspected"] == 0
        suspected = {name for name, number in self._names.items() if not is_clear[number]}
        questions, answered = (int(self._numbers[name][is_clear].sum()) for name in ("questions", "answered"))
        return suspected, questions, answered


def without(tables: Tables, suspected: set[GroupName]) -> Iterator[pa.Table]:
    """The requests of these groups, and the answers that may be about their queues."""
    wanted = {name[:3] for name in suspected}
    for _number, table in tables():
        numbers, firsts = queue_numbers(table)
        queues = [(*name.values(),) for name in table.select(GROUP_KEY).take(pa.array(firsts)).to_pylist()]
        is_near = [name in wanted or name[2] < 0 or "" in name[:2] for name in queues]
        groups, names = coded(table, "group")
        used, inverse = np.unique(numbers.astype(np.int64) * len(names) + groups, return_inverse=True)
        asks = [(*queues[each // len(names)], names[each % len(names)]) in suspected for each in used.tolist()]
        is_mine = rows_where(table, "request_received") & np.array(asks, dtype=np.bool_)[inverse]
        is_mine |= rows_where(table, "answer_sent") & np.array(is_near, dtype=np.bool_)[numbers]
        yield table.filter(pa.array(is_mine))
