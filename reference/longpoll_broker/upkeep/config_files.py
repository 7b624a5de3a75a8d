"""Topics, groups and offsets on disk: `config/*.json` in RocketMQ's format, each with a `.bak` of its predecessor.

With light queues, all offsets are in `lmqConsumerOffset.json`, where a light group has one number per topic. If that
file does not exist, this broker reads `consumerOffset.json`; RocketMQ starts without offsets.

`TableSaves` answers changes of topics and groups when they are on disk, with one save for many changes. A change takes
effect at once, but its answer waits, so that a kill does not undo an acknowledged change. RocketMQ writes the files on
the serving thread. In this broker a separate thread writes the files, so that other requests do not wait for the disk.
The same thread finishes deletions in the store. Changes that no client requested: see `upkeep.flush_service`.

Sources: `ConfigManager.java`, `TopicConfigManager.java`, `SubscriptionGroupManager.java`, `ConsumerOffsetManager.java`,
`LmqConsumerOffsetManager.java`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final, Protocol, TypeVar

import msgspec
from attrs import define, field

from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import REMARK_SIZE_MAX, answer, failure, refuse
from longpoll_broker.shared.offsets import Offsets
from longpoll_broker.shared.timer_offsets import DelayOffsets, TimerOffsets
from longpoll_broker.shared.topics import LOADED_QUEUE_COUNT_MAX, GroupConfig, Groups, TopicConfig, Topics, chunks_of
from longpoll_broker.store.segment import make_beside
from longpoll_protocol.bodies import load_json
from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.frames import Command
from longpoll_protocol.names import queue_name_problem
from longpoll_runtime import Condition, Lock, NotRegularError, Runtime, Thread
from longpoll_runtime.recoverable import FAULTS
from longpoll_spec.errors import ConfigError

log = logging.getLogger(__name__)

Offset = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A number that fits in 64 bits, as in requests and in Java."""

TOPICS: Final = "topics.json"
GROUPS: Final = "subscriptionGroup.json"
OFFSETS: Final = "consumerOffset.json"
LIGHT_OFFSETS: Final = "lmqConsumerOffset.json"
DELAYS: Final = "delayOffset.json"
TIMERS: Final = "timerOffset.json"
"""The file with the progress of the delivery of timed messages; RocketMQ has no such file."""
_KEYS: Final = {TOPICS: {"topicConfigTable"}, GROUPS: {"subscriptionGroupTable"}}
_OFFSET_KEYS: Final = {"offsetTable", "lmqOffsetTable"}
"""Every offsets file has one of these keys."""
_UNREADABLE: Final = (
    msgspec.MsgspecError,
    UnicodeDecodeError,
    RecursionError,
    NotRegularError,
    IsADirectoryError,
    ConfigError,
)
_Content = dict[str, Any]
T = TypeVar("T")


@define(slots=True, eq=False)
class ConfigFiles:
    """The tables of one broker, and the directory of their files. One thread at a time saves."""

    runtime: Runtime
    directory: str
    topics: Topics
    groups: Groups
    offsets: Offsets
    delays: DelayOffsets
    timers: TimerOffsets = field(factory=TimerOffsets)
    flush: Callable[[], object] = lambda: None
    """Makes the log durable before offsets are saved, because no saved offset may be beyond the durable records."""
    _saving: Lock = field(init=False)
    _counter: int = field(default=0, init=False)
    _damaged: set[str] = field(factory=set, init=False)
    """Unreadable files, whose tables were read from the `.bak` files and exist only there until the next write."""

    def __attrs_post_init__(self) -> None:
        self._saving = self.runtime.lock()

    def load(self) -> None:
        """Read the files; raises ConfigError if neither a file nor its `.bak` is usable, and OSError."""
        # If the path is a file, fail here: otherwise every table would be treated as absent and therefore as empty.
        self.runtime.files.list(self.directory)
        for topic in self._table(TOPICS, _topics):
            self.topics.put(topic)
        for group in self._table(GROUPS, _groups):
            self.groups.put(group)
        path = f"{self.directory}/{LIGHT_OFFSETS}"
        light = self.offsets.light and any(map(self.runtime.files.exists, (path, f"{path}.bak")))
        self.offsets.by_pair.update(self._table(LIGHT_OFFSETS if light else OFFSETS, _offsets))
        self.offsets.note_loaded()
        self.delays.by_level.update(self._table(DELAYS, _delays))
        self.timers.take(self._table(TIMERS, _timers))
        # A table that was read from a `.bak` is written with the first save, even if it has not changed.
        self.topics.changed = TOPICS in self._damaged
        self.groups.changed = GROUPS in self._damaged
        self.offsets.changed = bool(self._damaged & {OFFSETS, LIGHT_OFFSETS})
        self.delays.changed = DELAYS in self._damaged
        self.timers.changed = TIMERS in self._damaged

    def save(self) -> None:
        """Write every changed table. Raises OSError; then the next save writes the table again."""
        self.save_names()
        with self._saving:
            self._save_positions()

    def _save_positions(self) -> None:
        with _taken(self.offsets) as has_offsets, _taken(self.delays) as has_delays, _taken(self.timers) as has_timers:
            files: dict[str, dict[str, Any]] = {}
            if has_offsets:
                files.update((self._offsets_file(),))
            if has_delays:
                levels = {str(level): offset for level, offset in self.delays.by_level.copy().items()}
                files[DELAYS] = {"offsetTable": levels}
            if has_timers:
                files[TIMERS] = {"offsetTable": self.timers.table()}
            if files:
                self.flush()
            for name, content in files.items():
                self._write(name, content)

    def save_topics(self) -> None:
        """Write the topics if they have changed; raises OSError as `save` does."""
        with self._saving:
            self._save_topics()

    def _save_topics(self) -> None:
        with _taken(self.topics) as has_changed:
            # A thread that creates a topic adds it to `unsaved` before it sets `changed`, so check both.
            if not has_changed and not self.topics.unsaved:
                return
            topics = self.topics.by_name.copy()
            self._write(TOPICS, {"topicConfigTable": topics, "dataVersion": self._version()})
            for name, topic in self.topics.unsaved.copy().items():
                if topics.get(name) == topic:
                    self.topics.unsaved.pop(name, None)

    def save_names(self) -> None:
        """Write changed topics and groups, and removed offsets; raises OSError as `save` does.

        When this method returns, all changes from before the call are on disk.
        """
        with self._saving:
            self._save_topics()
            with _taken(self.groups) as has_changed:
                if has_changed:
                    groups = {"subscriptionGroupTable": self.groups.by_name.copy(), "dataVersion": self._version()}
                    self._write(GROUPS, groups)
            with _taken(self.offsets, "has_forgotten") as has_forgotten:
                if has_forgotten:
                    self._save_positions()

    def _offsets_file(self) -> tuple[str, dict[str, Any]]:
        offsets = self.offsets
        table = {pair: queues.copy() for pair, queues in offsets.by_pair.copy().items()}
        if not offsets.light:
            return OFFSETS, {"offsetTable": table}
        light = {pair: queues[0] for pair, queues in table.items() if offsets.is_light(pair) and 0 in queues}
        rest = {pair: queues for pair, queues in table.items() if pair not in light}
        return LIGHT_OFFSETS, {"lmqOffsetTable": light, "offsetTable": rest}

    def _version(self) -> dict[str, int]:
        self._counter += 1
        return {"counter": self._counter, "timestamp": self.runtime.unix_ms()}

    def _write(self, name: str, content: dict[str, Any]) -> None:
        files = self.runtime.files
        path = f"{self.directory}/{name}"
        make_beside(files, self.directory)
        if name not in self._damaged and files.exists(path):
            files.write_atomic(f"{path}.bak", files.read(path))
        files.write_atomic(path, _text(content))
        self._damaged.discard(name)

    def _table(self, name: str, read: Callable[[_Content], T]) -> T:
        """Read a file, or its `.bak` if the file is unusable; empty if neither exists. Raises ConfigError."""
        problem = ""
        for path in (f"{self.directory}/{name}", f"{self.directory}/{name}.bak"):
            if not self.runtime.files.exists(path):
                continue
            try:
                content = msgspec.convert(load_json(self.runtime.files.read(path)), _Content)
                if all(content.get(key) is None for key in _KEYS.get(name, _OFFSET_KEYS)):
                    # The broker never writes a file without a table, so the content of this file was lost.
                    log.warning("%s holds no table", path)
                    self._damaged.add(name)
                    continue
                return read(content)
            except _UNREADABLE as error:
                problem = f"{path} cannot be read ({error})"
                log.warning("%s; trying the one before", problem)
                self._damaged.add(name)
        if problem:
            raise ConfigError(f"{problem}; repair it, or move it and its .bak away to start without it")
        return read({})


def _text(content: Mapping[str, Mapping[str, Any]]) -> bytearray:
    """Encode tables as `msgspec.json.format` does with indent 1, in parts, so that other threads run in between."""
    text = bytearray(b"{")
    for key, table in content.items():
        text += b"%b\n %b: {" % (b"," if len(text) > 1 else b"", msgspec.json.encode(key))
        rows = (msgspec.json.format(msgspec.json.encode(part), indent=1)[1:-2] for part in chunks_of(table))
        for number, part in enumerate(rows):
            text += (b"," if number else b"") + part.replace(b"\n", b"\n ")
        text += b"\n }" if table else b"}"
    text += b"\n}"
    return text


def _rows(content: _Content, key: str) -> _Content:
    return msgspec.convert(content.get(key), _Content | None) or {}


def _topics(content: _Content) -> list[TopicConfig]:
    found = []
    for name, row in _rows(content, "topicConfigTable").items():
        topic: TopicConfig = _convert(row, TopicConfig, TOPICS)
        for queue_count in (topic.read_queue_nums, topic.write_queue_nums):
            if not 0 <= queue_count <= LOADED_QUEUE_COUNT_MAX:
                raise ConfigError(
                    f"{TOPICS} gives the topic {name[:200]} {queue_count} queues, 0 to {LOADED_QUEUE_COUNT_MAX} can "
                    "be served; correct the file"
                )
        if queue_name_problem(topic.topic_name) is None and name == topic.topic_name:
            found.append(topic)
        else:
            log.warning("%s: the topic %s has an illegal or another name and is left out", TOPICS, name[:200])
    return found


def _groups(content: _Content) -> list[GroupConfig]:
    return [_convert(row, GroupConfig, GROUPS) for row in _rows(content, "subscriptionGroupTable").values()]


def _offsets(content: _Content) -> dict[str, dict[int, int]]:
    found = {pair: _convert(row, dict[int, Offset], OFFSETS) for pair, row in _rows(content, "offsetTable").items()}
    light = _rows(content, "lmqOffsetTable").items()
    return found | {pair: {0: _convert(row, Offset, LIGHT_OFFSETS)} for pair, row in light}


def _delays(content: _Content) -> dict[int, int]:
    rows = _rows(content, "offsetTable").items()
    return {_convert(level, int, DELAYS): _convert(offset, Offset, DELAYS) for level, offset in rows}


def _timers(content: _Content) -> dict[str, int]:
    return {name: _convert(value, int, TIMERS) for name, value in _rows(content, "offsetTable").items()}


@contextmanager
def _taken(table: Topics | Groups | Offsets | DelayOffsets | TimerOffsets, flag: str = "changed") -> Iterator[bool]:
    """Reset a table's flag for the `with` block; yields whether it was set. A failed block sets the flag again."""
    # The flag is reset before the copy, so that a change during the copy is saved next time. If the flag is not set, it
    # is not reset: no copy follows, so a change that sets the flag at this moment would be lost.
    stood = bool(getattr(table, flag))
    if stood:
        setattr(table, flag, False)
    is_saved = False
    try:
        yield stood
        is_saved = True
    finally:
        if stood and not is_saved:
            setattr(table, flag, True)


def _convert(row: Any, kind: Any, name: str) -> Any:
    try:
        return msgspec.convert(row, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name} holds {repr(row)[:200]}, which cannot be used ({error}); repair the file") from None


WAITING_COUNT_MAX: Final = 10_000
"""Maximum waiting answers; beyond this limit, the requesting thread saves the tables itself and slows its client."""

Work = Callable[[], None]
"""The disk work of one change, done before the save; may raise any error."""
_Waiting = tuple[Channel, Command, Parts, Work | None]


class WhenSaved(Protocol):
    """Answers a change of topics or groups when the change is on disk."""

    def __call__(self, channel: Channel, command: Command, parts: Parts, work: Work | None = None) -> Parts | None:
        """Returns the answer if the change is on disk already, or None if the answer follows. `work` runs first."""
        ...


@define(slots=True, eq=False)
class TableSaves:
    """The saving thread and the answers that wait for a save.

    Invariant: the thread that removes an answer from the waiting answers sends it.
    """

    runtime: Runtime
    config_files: ConfigFiles
    give: Callable[[Channel, Command, Parts, Outbox], None] = refuse
    """Sends the answer to a saved change."""
    _changed: Condition = field(init=False)
    _waiting: list[_Waiting] = field(factory=list, init=False)
    _running: bool = field(default=False, init=False)
    _thread: Thread | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._changed = self.runtime.condition()

    def start(self) -> None:
        """Start the thread."""
        self._running = True
        self._thread = self.runtime.spawn("table-saver", self._save_all)

    def stop(self) -> None:
        """Answer the waiting changes, then end the thread; later changes are saved by the thread that makes them."""
        with self._changed:
            self._running = False
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def answer_when_saved(
        self, channel: Channel, command: Command, parts: Parts, work: Work | None = None
    ) -> Parts | None:
        """Returns the answer to a new change if it is on disk, or None if the answer follows after `work` and a save.

        If `work` or the save fails, the answer becomes code 1.
        """
        with self._changed:
            if self._running and len(self._waiting) < WAITING_COUNT_MAX:
                self._waiting.append((channel, command, parts, work))
                self._changed.notify_all()
                return None
        parts = _worked(channel, command, parts, work)
        problem = self._problem_of_save()
        return parts if problem is None else _refusal(command, problem)

    def _save_all(self) -> None:
        outbox = Outbox()
        while True:
            with self._changed:
                while not self._waiting and self._running:
                    self._changed.wait()
                waiting, self._waiting = self._waiting, []
            if not waiting:
                return
            told = [(channel, command, _worked(channel, command, parts, work)) for channel, command, parts, work in waiting]  # noqa: E501 - one line each  # fmt: skip
            problem = self._problem_of_save()
            for channel, command, parts in told:
                self.give(channel, command, parts if problem is None else _refusal(command, problem), outbox)
            outbox.flush()

    def _problem_of_save(self) -> str | None:
        try:
            self.config_files.save_names()
        except FAULTS as error:
            log.exception("topics and groups could not be saved; trying again")
            return f"the change counts, and could not be saved yet: {type(error).__name__}: {error}"
        return None


def _worked(channel: Channel, command: Command, parts: Parts, work: Work | None) -> Parts:
    try:
        if work is not None:
            work()
    except FAULTS as error:
        return failure(channel, command, error)
    return parts


def _refusal(command: Command, problem: str) -> Parts:
    return answer(command, ResponseCode.SYSTEM_ERROR, problem[:REMARK_SIZE_MAX])
