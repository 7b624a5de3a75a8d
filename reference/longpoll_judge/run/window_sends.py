"""Finds the queues whose sends break no clause, split by split, so that `rules.sends` judges only the others.

A queue is clear if its sends, messages and deliveries are in order. The watch compares each event with the next splits
and with a few numbers of the earlier ones. It suspects every other queue, perhaps wrongly, and `rules.sends` judges it.
Some events make it suspect all queues: transactions, delays, messages with two identities or places, repeated
identifiers, and answers that come again or before their request.

Memory holds three splits, and some numbers for each queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from attrs import define, field
from numpy.typing import NDArray

from longpoll_judge.columns.batch import GROUP_KEY, QueueName, queue_numbers
from longpoll_judge.columns.keys import NO_KEYS, KeyFile, Keys, request_keys
from longpoll_judge.columns.lookup import Booleans, Integers, is_one_of
from longpoll_judge.columns.queue_log import NEVER
from longpoll_judge.contract.clause import SEND_CODES, SEND_MS, SHOWN_MS
from longpoll_judge.evidence.survey import UNSEEN, Context
from longpoll_judge.read.schema import are_named, coded, coded_texts
from longpoll_judge.rules.cross_queue import WEIGHT, Tables, first_of, hashes, rows_where
from longpoll_judge.rules.messages import IDENTITY, are_unlisted, identity, outcomes
from longpoll_judge.rules.queue_columns import MS

Rows = dict[str, NDArray[Any]]
"""Columns of one length; `place` is the number of a source's queue, `age` how many splits ago a row came."""
WAIT: Final = 2
"""How many further splits an event waits for the events that belong to it."""
WAITING_MAX: Final = 1_000_000
_SHIFT: Final = 40
"""Bits of the offset in a number that combines a place and an offset."""
_NUMBERS: Final = {
    **dict.fromkeys(("acknowledged", "end", "ahead"), -1),
    **dict.fromkeys(("asked_ns", "ended_ns"), -NEVER),
    **dict.fromkeys(("suspected", "used", "unshown", "sends"), 0),
}
"""Numbers of each place in the earlier splits, with their initial values: the highest offsets and end, and the latest
times of a send and of an end. Then flags, and the count of sends."""


@define(eq=False)
class SendWatch:
    """Watches the sends of a history, split by split."""

    context: Context
    received: KeyFile
    """Collects the keys of all requests."""
    messages: tuple[KeyFile, KeyFile, KeyFile]
    """Collect the keys of acknowledged and delivered messages: of the place, of place and identity, and of topic and
    identity. The three have equal counts if each message has one place and one identity."""
    is_over: bool = False
    """All queues are suspected."""
    _is_refused: bool = False
    """A send was refused."""
    _places: dict[tuple[str, str, str, int], int] = field(factory=dict)
    """By source, broker, topic and queue."""
    _numbers: dict[str, Integers] = field(factory=lambda: {name: np.empty(0, dtype=np.int64) for name in _NUMBERS})
    _waiting: dict[str, dict[str, Rows]] = field(factory=dict)
    """By source and kind."""
    _open: dict[str, Keys] = field(factory=dict)
    """By source, the requests other than sends that have no answer yet."""
    _unasked: Keys = field(factory=NO_KEYS.copy)
    """The requests of answers that came when these were not open. One that is in the history may be a send."""
    _appending: dict[str, bool] = field(factory=dict)
    """By source of acknowledgements, whether it also records appends."""

    def see(self, table: pa.Table) -> None:
        """Take the events of a split."""
        for source, part in by_source(table):
            if not self.is_over:
                self._see(part, source)

    def finish(self) -> tuple[set[QueueName], int] | None:
        """The suspected queues, and the number of sends of the others; None if all are suspected."""
        for source, waiting in self._waiting.items():
            self.is_over |= len(waiting["told"]["place"]) > 0
            self._suspect(waiting["sent"]["place"])
            last_ns = self.context.sources.get(source, UNSEEN).last_ns
            shown = waiting["shown"]["place"][waiting["shown"]["due_ns"] < last_ns]
            self._suspect(shown[self._numbers["end"][shown] >= 0])
        counts = {file.distinct() for file in self.messages}
        if self.is_over or len(counts) > 1 or (self._is_refused and counts != {0}):
            return None
        if len(self.received.repeated(np.unique(self._unasked))):
            return None
        found: dict[QueueName, list[int]] = {}
        for (_source, broker, topic, queue), place in self._places.items():
            found.setdefault((broker, topic, queue), []).append(place)
        suspected, sends = set[QueueName](), 0
        for name, places in found.items():
            is_shared = np.count_nonzero(self._numbers["used"][places]) > 1
            if self._numbers["suspected"][places].any() or is_shared or self.context.lives(name) is not None:
                suspected.add(name)
            else:
                sends += int(self._numbers["sends"][places].sum())
        return suspected, sends

    def _suspect(self, places: Integers) -> None:
        self._numbers["suspected"][places] = 1

    def _see(self, table: pa.Table, source: str) -> None:
        rows = self._rows(table, source)
        for kind, old in self._waiting.get(source, {}).items():
            old["age"] += 1
            rows[kind] = {name: np.concatenate((old[name], column)) for name, column in rows[kind].items()}
        self.is_over |= any(len(each["place"]) > WAITING_MAX for each in rows.values())
        if not self.is_over:
            self._look_at_ends(rows)
            self._look_at_appends(rows, source)
            self._settle(rows)
        self._waiting[source] = rows

    def _placed(self, table: pa.Table, source: str) -> Integers:
        """The place of each row."""
        number, rows = queue_numbers(table)
        names = table.select(GROUP_KEY).take(pa.array(rows)).to_pylist()
        places = [self._places.setdefault((source, *name.values()), len(self._places)) for name in names]
        more = len(self._places) - len(self._numbers["used"])
        for name, none in _NUMBERS.items():
            self._numbers[name] = np.append(self._numbers[name], np.full(more, none, dtype=np.int64))
        found: Integers = np.array(places, dtype=np.int64)[number]
        return found

    def _rows(self, table: pa.Table, source: str) -> dict[str, Rows]:
        """The relevant events of a split, by kind."""
        place, keys = self._placed(table, source), request_keys(table, np.arange(len(table)))
        (requests, request_names), (topics, topic_names) = (coded_texts(table, name) for name in ("request", "topic"))
        named, known = are_named(request_names)[requests], are_named(topic_names)[topics]
        columns = {name: table[name].to_numpy() for name in ("after_ns", "before_ns", "queue", "code", "offset_min")}
        columns |= {"offset": table["queue_offset"].to_numpy(), "end": table["visible_end"].to_numpy()}
        known &= columns["queue"] >= 0
        is_offset, is_end, is_read = (columns[name] >= 0 for name in ("offset", "end", "offset_min"))
        is_receipt, is_answer = rows_where(table, "request_received"), rows_where(table, "answer_sent")
        # A send without an identifier has no acknowledgement, but its delay or transaction concerns its message.
        asked = np.flatnonzero(is_receipt & is_one_of(columns["code"], SEND_CODES))
        is_receipt &= named
        is_send = is_receipt & is_one_of(columns["code"], SEND_CODES)
        sent, told, logged, moved, found = map(
            np.flatnonzero,
            (
                is_send,
                rows_where(table, "message_acknowledged") & known & is_offset,
                rows_where(table, "append") & known & is_offset,
                rows_where(table, "make_visible") & known & is_end,
                is_answer & is_read & (columns["code"] == 0),
            ),
        )
        lists = table["offsets"].combine_chunks()
        bounds = lists.offsets.to_numpy().astype(np.int64)
        counts = np.diff(bounds)[found]
        got = np.repeat(found, counts)
        nth = np.arange(len(got)) - np.repeat(np.cumsum(counts) - counts, counts)
        offsets = lists.values.to_numpy()[bounds[got] + nth]
        for rows in (sent, told, logged, moved, got):
            self._numbers["used"][place[rows]] = 1
        self._identify(table, asked, place, (told, np.zeros_like(told), columns["offset"][told]), (got, nth, offsets))
        most = max(int(column.max(initial=0)) for column in (columns["offset"], columns["end"], offsets))
        self.is_over |= most >= 1 << (_SHIFT - 1) or len(self._places) >= 1 << (62 - _SHIFT)
        self.received.put(keys[is_receipt])
        self._answer(source, keys, place, requests, (is_send, is_receipt & ~is_send, is_answer & named))

        def rows_of(rows: Integers, *names: str, **more: NDArray[Any]) -> Rows:
            taken = {name: columns[name][rows] for name in names}
            return {"place": place[rows], "age": np.zeros(len(rows), dtype=np.int64), **taken, **more}

        def named_by(rows: Integers, *names: str) -> Rows:
            return {"key": keys[rows]} | {name: hashes(table, name, rows) for name in names}

        self._suspect(place[found[are_unlisted(table, found)]])
        both = np.concatenate((logged, told))
        more = {"closed_ns": self._closed_ns(table, source)[told], "is_stored": np.zeros(len(told), dtype=np.bool_)}
        more |= identity(table, told, np.zeros_like(told))
        return {
            "sent": rows_of(
                sent,
                "after_ns",
                "before_ns",
                **named_by(sent, "connection"),
                **identity(table, sent, np.zeros_like(sent)),
            ),
            "told": rows_of(told, "after_ns", "before_ns", "offset", **named_by(told, "connection", "tag"), **more),
            "logged": rows_of(logged, "after_ns", "offset", tag=hashes(table, "tag", logged)),
            "shown": rows_of(both, "offset", due_ns=columns["after_ns"][both] + SHOWN_MS * MS),
            "moved": rows_of(moved, "after_ns", "end"),
            "got": rows_of(got, "before_ns") | {"offset": offsets},
        }

    def _identify(
        self, table: pa.Table, sent: Integers, place: Integers, *seen: tuple[Integers, Integers, Integers]
    ) -> None:
        """Take the identities of the messages of sends, and of those `seen`: rows, positions in these, and offsets.

        Sends of several messages are suspected. Transactions and delays concern all queues.
        """
        counts = np.diff(table["ids"].combine_chunks().offsets.to_numpy())
        self._suspect(place[sent[counts[sent] > 1]])
        sent = sent[counts[sent] > 0]
        delays = table["delay_ms"].to_numpy()[sent], table["delay_level"].to_numpy()[sent] - 1
        self.is_over |= bool(outcomes(table, sent).any() or (np.maximum(*delays) >= 0).any())
        rows, nth, offset = (np.concatenate(columns) for columns in zip(*seen, strict=True))
        told = identity(table, rows, nth)
        has_id, has_body = told["id"] != 0, told["body"] != -1
        self.is_over |= bool((has_id != has_body).any())
        if not has_id.any():
            return
        rows, offset, own, body = (column[has_id] for column in (rows, offset, told["id"], told["body"]))
        broker, topic = hashes(table, "broker", rows), hashes(table, "topic", rows)
        queue = np.where(broker != 0, broker, hashes(table, "source", rows)) * WEIGHT + topic
        queue = queue * WEIGHT + table["queue"].to_numpy()[rows].astype(np.uint64)
        at = queue * WEIGHT + offset.astype(np.uint64)
        value = (at * WEIGHT + own.astype(np.uint64)) * WEIGHT + body.astype(np.uint64)
        for file, keys in zip(self.messages, (at, value, topic * WEIGHT + own.astype(np.uint64)), strict=True):
            file.put(np.unique(keys))

    def _closed_ns(self, table: pa.Table, source: str) -> Integers:
        """When the connection of each row was first closed; `NEVER` if it was not."""
        codes, names = coded(table, "connection")
        closes = [self.context.closes.get((source, name), (NEVER, NEVER))[1] for name in names]
        again = [
            min((close[1] for close in self.context.closed_often.get((source, name), ())), default=NEVER)
            for name in names
        ]
        return np.minimum(np.array(closes, dtype=np.int64), np.array(again, dtype=np.int64))[codes]

    def _answer(
        self,
        source: str,
        keys: Keys,
        place: Integers,
        requests: NDArray[np.int32],
        kinds: tuple[Booleans, Booleans, Booleans],
    ) -> None:
        """Take the answers of a split. The send of an answer is suspected.

        Args:
            source: Their source.
            keys: By row the key of its request.
            place: By row its place.
            requests: By row the number of its request in this split.
            kinds: Which rows are sends, other requests and answers; all are named.
        """
        is_send, is_other, is_answer = kinds
        sent, asked, answered = (
            np.bincount(requests[rows], minlength=int(requests.max(initial=0)) + 1) > 0 for rows in kinds
        )
        refused = is_send & answered[requests]
        self._suspect(place[refused])
        self._is_refused |= bool(refused.any())
        old = self._waiting.get(source, {}).get("sent", {"key": NO_KEYS, "place": np.empty(0, dtype=np.int64)})
        open_ = self._open.get(source, NO_KEYS)
        earlier = keys[is_answer & ~asked[requests] & ~sent[requests]]
        refused = np.isin(old["key"], earlier)
        self._suspect(old["place"][refused])
        self._is_refused |= bool(refused.any())
        unasked = earlier[~np.isin(earlier, np.concatenate((open_, old["key"])))]
        self._unasked = np.concatenate((self._unasked, unasked))
        self._open[source] = np.concatenate((open_[~np.isin(open_, earlier)], keys[is_other & ~answered[requests]]))
        self.is_over |= max(len(self._open[source]), len(self._unasked)) > WAITING_MAX

    def _look_at_ends(self, rows: dict[str, Rows]) -> None:
        """Suspect the queues with a message that was not visible in time."""
        moved, shown, numbers = rows["moved"], rows["shown"], self._numbers
        place, end, after_ns = (moved[name] for name in ("place", "end", "after_ns"))
        self._suspect(place[numbers["unshown"][place] > 0])
        order = np.lexsort((end, place))
        at, is_seen = _found(_together(place, end)[order], shown["place"], shown["offset"] + 1)
        is_seen &= np.append(place[order], -1)[at] == shown["place"]
        was_seen = numbers["end"][shown["place"]] > shown["offset"]
        seen_ns = np.where(was_seen, numbers["ended_ns"][shown["place"]], np.append(after_ns[order], NEVER)[at])
        is_seen |= was_seen
        self._suspect(shown["place"][is_seen & (seen_ns > shown["due_ns"])])
        np.maximum.at(numbers["end"], place, end)
        np.maximum.at(numbers["ended_ns"], place, after_ns)
        left = shown["place"][~is_seen & (shown["age"] >= WAIT)]
        self._suspect(left[numbers["end"][left] >= 0])
        numbers["unshown"][left] = 1
        rows["shown"] = _picked(shown, ~is_seen & (shown["age"] < WAIT))
        rows["moved"] = _picked(moved, np.empty(0, dtype=np.int64))

    def _look_at_appends(self, rows: dict[str, Rows], source: str) -> None:
        """Suspect the queues with an acknowledged message that was not appended before, with the same tag."""
        logged, told = rows["logged"], rows["told"]
        if len(told["place"]) or len(logged["place"]):
            is_appending = self._appending.setdefault(source, len(logged["place"]) > 0)
            self.is_over |= len(logged["place"]) > 0 and not is_appending
            told["is_stored"] |= not is_appending
        value = _together(logged["place"], logged["offset"])
        order = np.argsort(value, kind="stable")
        at, is_there = _found(value[order], told["place"], told["offset"], exactly=True)
        append = np.append(order, -1)[at]
        wrong = np.append(logged["after_ns"], 0)[append] > told["before_ns"]
        wrong |= np.append(logged["tag"], np.uint64(0))[append] != told["tag"]
        self._suspect(told["place"][is_there & wrong])
        told["is_stored"] |= is_there
        logged["age"][append[is_there]] = WAIT
        rows["logged"] = _picked(logged, logged["age"] < WAIT)

    def _settle(self, rows: dict[str, Rows]) -> None:
        """Compare the sends whose messages were acknowledged, and drop both."""
        sent, told, numbers = rows["sent"], rows["told"], self._numbers
        send = first_of(told["key"], sent["key"])
        is_done = (send >= 0) & told["is_stored"]
        order = np.flatnonzero(is_done)
        order = order[np.argsort(_together(told["place"], told["offset"])[order], kind="stable")]
        done, asked = _picked(told, order), _picked(sent, send[order])
        self._compare(done, asked)
        self._batches(done, send[order], len(sent["place"]))
        place, offset = done["place"], done["offset"]
        self._deliver(rows, done, asked)
        np.maximum.at(numbers["acknowledged"], place, offset)
        np.maximum.at(numbers["asked_ns"], place, asked["after_ns"])
        got = rows["got"]
        left = got["age"] >= WAIT
        is_ahead = got["offset"] > numbers["acknowledged"][got["place"]]
        np.maximum.at(numbers["ahead"], got["place"][left & is_ahead], got["offset"][left & is_ahead])
        rows["got"] = _picked(got, ~left & is_ahead)
        is_answered = np.bincount(send[order], minlength=len(sent["place"])) > 0
        np.add.at(numbers["sends"], sent["place"][is_answered], 1)
        self._suspect(sent["place"][~is_answered & (sent["age"] >= WAIT)])
        rows["sent"] = _picked(sent, ~is_answered & (sent["age"] < WAIT))
        self.is_over |= bool((~is_done & (told["age"] >= WAIT)).any())
        rows["told"] = _picked(told, ~is_done)

    def _compare(self, told: Rows, asked: Rows) -> None:
        """Compare acknowledgements, by place and offset, with their sends."""
        numbers, place, offset = self._numbers, told["place"], told["offset"]
        after_ns, before_ns, asked_ns = told["after_ns"], told["before_ns"], asked["after_ns"]
        self._suspect(asked["place"][asked["place"] != place])
        wrong = (before_ns < asked_ns) | (after_ns - asked["before_ns"] > SEND_MS * MS)
        wrong |= (asked["place"] != place) | (told["closed_ns"] < after_ns)
        both = (told["connection"] != 0) & (asked["connection"] != 0)
        wrong |= both & (told["connection"] != asked["connection"])
        for name, none in zip(IDENTITY, (0, -1), strict=True):
            wrong |= (told[name] != none) & (asked[name] != none) & (told[name] != asked[name])
        # Whatever comes after this split was sent later, has a higher offset, and had not been delivered.
        wrong |= (offset <= numbers["acknowledged"][place]) | (offset <= numbers["ahead"][place])
        wrong |= before_ns < numbers["asked_ns"][place]
        wrong[1:] |= (place[1:] == place[:-1]) & (offset[1:] == offset[:-1])
        self._suspect(place[wrong])
        if len(place) > 1:
            # No message with a higher offset was acknowledged before this one was sent.
            first_ns = int(before_ns.min())
            width = int(before_ns.max()) - first_ns + 1
            if width >= (1 << 62) // (len(numbers["used"]) + 1):
                self._suspect(place)
                return
            least = np.minimum.accumulate((place * width + before_ns - first_ns)[::-1])[::-1]
            self._suspect(place[:-1][least[1:] < (place * width + asked_ns - first_ns)[:-1]])

    def _batches(self, told: Rows, send: Integers, count: int) -> None:
        """Suspect sends whose messages were not acknowledged together with consecutive offsets."""
        is_same = send[1:] == send[:-1]
        steps = is_same & (np.diff(told["offset"]) == 1)
        for name in ("place", "after_ns", "before_ns"):
            steps &= told[name][1:] == told[name][:-1]
        counts = np.bincount(send, minlength=count)
        if np.count_nonzero(steps) != len(send) - np.count_nonzero(counts):
            self._suspect(told["place"][counts[send] > 1])

    def _deliver(self, rows: dict[str, Rows], told: Rows, asked: Rows) -> None:
        """Suspect the queues with a message that was delivered before its send came."""
        got, numbers = rows["got"], self._numbers
        at, is_there = _found(_together(told["place"], told["offset"]), got["place"], got["offset"], exactly=True)
        is_behind = ~is_there & (got["offset"] <= numbers["acknowledged"][got["place"]])
        since_ns = np.where(is_there, np.append(asked["after_ns"], 0)[at], numbers["asked_ns"][got["place"]])
        self._suspect(got["place"][(is_there | is_behind) & (got["before_ns"] < since_ns)])


def by_source(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The events of each source."""
    codes, names = coded(table, "source")
    present = np.flatnonzero(np.bincount(codes, minlength=len(names))).tolist()
    for code in present:
        yield names[code], table if len(present) == 1 else table.filter(pa.array(codes == code))


def _picked(rows: Rows, which: Integers | Booleans) -> Rows:
    return {name: column[which] for name, column in rows.items()}


def _together(place: Integers, offset: Integers) -> Integers:
    return (place << _SHIFT) + offset


def _found(values: Integers, place: Integers, offset: Integers, *, exactly: bool = False) -> tuple[Integers, Booleans]:
    """The position of each wanted value, or of the next higher one, among the sorted values, and whether it exists."""
    wanted = _together(place, offset)
    at = np.searchsorted(values, wanted)
    is_there = at < len(values)
    if exactly:
        is_there &= np.append(values, -1)[at] == wanted
    return at, is_there


def without(tables: Tables, suspected: set[QueueName]) -> Iterator[tuple[int, pa.Table]]:
    """The events of each split without the sends, messages and reads of clear queues."""
    for number, table in tables():
        numbers, rows = queue_numbers(table)
        names = table.select(GROUP_KEY).take(pa.array(rows)).to_pylist()
        is_clear = np.array([(*name.values(),) not in suspected for name in names], dtype=np.bool_)[numbers]
        of_queue = is_one_of(table["code"].to_numpy(), SEND_CODES) & rows_where(table, "request_received")
        of_queue |= rows_where(table, "answer_sent") & (table["offset_min"].to_numpy() >= 0)
        for event in ("message_acknowledged", "append", "make_visible"):
            of_queue |= rows_where(table, event)
        yield number, table.filter(pa.array(~(is_clear & of_queue)))
