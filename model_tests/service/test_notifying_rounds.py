"""The dispatcher's and the scanner's rounds, played by hand: what each does, in order, and what a fault costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import pytest
from attrs import define, field

from longpoll_broker.service.io.channel import Outbox
from longpoll_broker.service.pull import dispatch_service, scan_service
from longpoll_broker.service.pull.dispatch_service import DispatchService
from longpoll_broker.service.pull.hold_service import HoldService
from longpoll_broker.service.pull.pull_events import PullEvents
from longpoll_broker.service.pull.scan_service import ScanService
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import Arrival
from longpoll_runtime.real import RealRuntime

FAULTS = (OSError("no room on the disk"), ValueError("a number that does not fit"), RuntimeError("a bug"))
ROUNDS_MAX = 5
"""A loop that is not ended ends the test here."""


class Played(RealRuntime):
    """Threads are bodies for the test to call, and sleeping is noted; `stops` is called after the second sleep."""

    def __init__(self, notes: list[str]) -> None:
        super().__init__()
        self.notes = notes
        self.bodies: dict[str, Callable[[], None]] = {}
        self.stops: Callable[[], None] = lambda: None

    def spawn(self, name: str, target: Callable[[], None]) -> Any:
        self.bodies[name] = target
        return self

    def join(self) -> None:
        self.notes.append("join")

    def step(self, action: str) -> None:
        self.notes.append(action)

    def sleep(self, seconds: float) -> None:
        self.notes.append(f"sleep {seconds}")
        slept = sum(note.startswith("sleep") for note in self.notes)
        assert slept < ROUNDS_MAX, "nobody ends it"
        if slept == 2:
            self.stops()


@define
class Waiting:
    """A store with arrivals to make visible, and the hold service that is told of them."""

    notes: list[str]
    arrivals: list[Arrival] = field(factory=list)
    fails: set[str] = field(factory=set)
    """What raises `error`."""
    error: Exception = FAULTS[0]
    troubles: Mapping[str, str] = field(factory=dict)
    dispatched_end: int = 0
    dispatchable_end: int = 10
    log_end: int = 10

    def _do(self, name: str) -> None:
        self.notes.append(name)
        if name in self.fails:
            raise self.error

    def flush(self) -> None:
        self._do("flush store")

    def dispatch(self, _count_max: int) -> Sequence[Arrival]:
        self._do("dispatch")
        self.dispatched_end = self.dispatchable_end
        return self.arrivals

    def queues(self) -> list[tuple[str, int]]:
        return [("T", 0), ("T", 1)]

    def visible_end(self, _topic: str, queue_id: int) -> int:
        return 5 + queue_id

    def notify(self, key: tuple[str, int], visible_end: int, _tags_code: int | None, _outbox: Outbox) -> None:
        self._do(f"notify {key[1]} to {visible_end}")

    def scan(self, _outbox: Outbox) -> None:
        self._do("scan")


class Events(PullEvents):
    """Notes what is told."""

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes

    def now_ns(self) -> int:
        return 7

    def made_visible(self, arrivals: Iterable[Arrival], after_ns: int) -> None:
        self.notes.append(f"told {len(list(arrivals))} since {after_ns}")

    def visible_from_start(self, ends: Iterable[tuple[str, int, int]]) -> None:
        self.notes.append(f"told {list(ends)}")


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens, in order; an outbox that a round makes notes that it is flushed."""
    noted: list[str] = []

    class Noting(Outbox):
        def flush(self) -> None:
            noted.append("flush")

    for module in (dispatch_service, scan_service):
        monkeypatch.setattr(module, "Outbox", Noting)
    return noted


def dispatcher_of(store: Waiting, **settings: bool) -> tuple[DispatchService, Played]:
    runtime = Played(store.notes)
    held = cast("HoldService", store)
    events = Events(store.notes)
    return DispatchService(runtime, cast("MessageStore", store), held, events, notifies=True, **settings), runtime


def arrivals_of(*queues: int) -> list[Arrival]:
    """A message each, one behind the other; offsets count from 0 in each queue."""
    return [Arrival("T", queue, queues[: at + 1].count(queue), 0, 0, at, 1) for at, queue in enumerate(queues)]


def test_a_run_is_a_step_and_what_it_shows_is_told_before_it_is_announced(notes: list[str]) -> None:
    """The history has the visible end before any wake that it explains."""
    dispatcher, _ = dispatcher_of(Waiting(notes, arrivals_of(0, 1)))
    dispatcher.run(Outbox())
    assert notes == ["make_visible", "dispatch", "told 2 since 7", "notify 0 to 1", "notify 1 to 1"]


def test_in_batches_the_last_message_of_each_queue_is_announced(notes: list[str]) -> None:
    for in_batches, announced in ((True, ["0 to 2", "1 to 1"]), (False, ["0 to 1", "1 to 1", "0 to 2"])):
        notes.clear()
        dispatcher, _ = dispatcher_of(Waiting(notes, arrivals_of(0, 1, 0)), in_batches=in_batches)
        dispatcher.run(Outbox())
        assert notes[3:] == [f"notify {each}" for each in announced]


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_what_cannot_be_made_visible_is_left_for_the_next_run(notes: list[str], error: Exception) -> None:
    dispatcher, _ = dispatcher_of(Waiting(notes, arrivals_of(0), fails={"dispatch"}))
    dispatcher.run(Outbox())
    assert notes == ["make_visible", "dispatch"]


def test_a_failed_dispatch_is_logged_once(notes: list[str], caplog: pytest.LogCaptureFixture) -> None:
    store = Waiting(notes, arrivals_of(0), fails={"dispatch"})
    dispatcher, _ = dispatcher_of(store)
    for _ in range(3):
        dispatcher.run(Outbox())
    assert caplog.text.count("messages could not be made visible") == 1
    store.fails.clear()
    dispatcher.run(Outbox())
    store.dispatched_end = 0
    store.fails.add("dispatch")
    dispatcher.run(Outbox())
    assert caplog.text.count("messages could not be made visible") == 2


def test_where_queues_begin_is_told_before_anything_is_served(notes: list[str]) -> None:
    dispatcher, _ = dispatcher_of(Waiting(notes))
    dispatcher.record_visible()
    assert notes == ["told [('T', 0, 5), ('T', 1, 6)]"]


SHOWN = ["make_visible", "dispatch", "told 1 since 7", "notify 0 to 1", "flush"]


FAILS = {"flush store"}


@pytest.mark.parametrize(
    ("settings", "store", "expected"),
    [
        ({}, {}, SHOWN),
        ({}, {"dispatched_end": 10}, []),
        ({"polls": True}, {}, []),
        ({"makes_durable": True}, {}, ["flush store", *SHOWN]),
        ({"makes_durable": True}, {"fails": FAILS}, ["flush store", *SHOWN]),
        ({"makes_durable": True}, {"fails": FAILS, "troubles": {"queues": "no room"}}, ["flush store", *SHOWN]),
        ({"makes_durable": True}, {"fails": FAILS, "troubles": {"log": "no room"}}, SHOWN),
    ],
)
def test_what_waits_is_shown(
    notes: list[str], settings: dict[str, bool], store: dict[str, Any], expected: list[str]
) -> None:
    dispatcher, _ = dispatcher_of(Waiting(notes, arrivals_of(0), **store), **settings)
    dispatcher.show_waiting()
    assert notes == expected


def test_the_poll_runs_tells_and_sleeps_until_it_is_stopped(notes: list[str]) -> None:
    """The stop waits for the thread's end."""
    store = Waiting(notes, arrivals_of(0))
    dispatcher, runtime = dispatcher_of(store, polls=True)
    runtime.stops = dispatcher.stop
    dispatcher.start(7)
    runtime.bodies["dispatcher"]()
    assert notes == [*SHOWN, "sleep 0.007", "flush", "sleep 0.007", "join"]


def test_a_poll_that_fails_goes_on(notes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher, runtime = dispatcher_of(Waiting(notes), polls=True)
    runtime.stops = dispatcher.stop

    def fails(_dispatcher: DispatchService, _outbox: Outbox) -> None:
        raise OSError("no room")

    monkeypatch.setattr(DispatchService, "run", fails)
    dispatcher.start(1)
    runtime.bodies["dispatcher"]()
    assert notes == ["flush", "sleep 0.001", "flush", "sleep 0.001", "join"]


def test_a_dispatcher_without_a_thread_is_stopped_too(notes: list[str]) -> None:
    dispatcher, _ = dispatcher_of(Waiting(notes))
    dispatcher.stop()
    assert notes == []


@pytest.mark.parametrize("error", [None, *FAULTS], ids=lambda error: type(error).__name__)
def test_the_scanner_scans_once_a_period(notes: list[str], error: Exception | None) -> None:
    waits: list[float] = []

    class Stop:
        def wait(self, seconds: float) -> bool:
            waits.append(seconds)
            return len(waits) > 2

    runtime = Played(notes)
    runtime.event = Stop  # type: ignore[method-assign,assignment]
    scanner = ScanService(
        runtime,
        cast("HoldService", Waiting(notes, fails={"scan"} if error else set(), error=error or OSError())),
        5_000,
    )
    scanner.start()
    runtime.bodies["scanner"]()
    assert notes == ["scan", "flush"] * 2
    assert waits == [5.0] * 3
