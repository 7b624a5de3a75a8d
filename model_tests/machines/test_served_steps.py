"""A served broker's own record, on real threads, is a run of its policy's spec."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from model_tests.support.broker.brokers import SMALL_STORE, wait_until
from model_tests.support.broker.raw_client import RawClient, pull_fields, send_message
from model_tests.support.judge.specification_steps import NotProjectableError, project

from longpoll_broker.broker import Broker
from longpoll_broker.hold.hold_table import Pull
from longpoll_broker.hold.pull import Found, Miss
from longpoll_broker.hold.pull_runner import PullRunner
from longpoll_judge.contract.result import FOLLOWS_THE_LAW, Result
from longpoll_judge.generate import write
from longpoll_judge.recording import Recording, load
from longpoll_judge.run.pipeline import judge
from longpoll_protocol.codes import RequestCode
from longpoll_runtime.real import RealRuntime
from longpoll_spec.history import Event
from longpoll_spec.policy import preset

MESSAGES: Final = 8
TIMEOUT_MS: Final = 5
TOPIC: Final = "T"


def consume(address: tuple[str, int], answered: list[int], count_max: int, first: int) -> None:
    """Pull until every message was read, from `first` on and then each time from where the last pull ended."""
    with RawClient(address) as client:
        offset = first
        while offset < first + MESSAGES:
            fields = pull_fields(TOPIC, offset, timeout_ms=TIMEOUT_MS) | {"maxMsgNums": str(count_max)}
            reply = client.reply(client.send(RequestCode.PULL_MESSAGE, fields))
            assert reply is not None
            assert reply.ext_fields is not None
            offset = int(reply.ext_fields["nextBeginOffset"])
            answered.append(offset)


def wait_for_answers(answered: list[int], count: int) -> None:
    """Wait until so many pulls were answered."""
    wait_until(lambda: len(answered) >= count)


def recorded(directory: Path, policy: str, *, consumers: int = 2, count_max: int = 32, first: int = 0) -> Recording:
    """Record a broker with one producer, whose messages come while pulls are held, woken and expired.

    The queue first has `first` unread messages.
    """
    history = directory / "history"
    options: dict[str, Any] = {"policy": preset(policy), "store_config": SMALL_STORE}
    answered: list[int] = []
    if first:
        with (
            Broker.start(RealRuntime(), str(directory / "store"), **options) as broker,
            RawClient(broker.address) as producer,
        ):
            for _ in range(first):
                send_message(producer, TOPIC, b"before")
    with (
        Broker.start(RealRuntime(), str(directory / "store"), record_directory=str(history), **options) as broker,
        RawClient(broker.address) as producer,
    ):
        send_message(producer, TOPIC, b"first")
        place = (broker.address, answered, count_max, first)
        threads = [threading.Thread(target=consume, args=place) for _ in range(consumers)]
        for thread in threads:
            thread.start()
        for number in range(1, MESSAGES):
            # After an answer or two more, so that some pulls are held and some have run out by then.
            wait_for_answers(answered, len(answered) + number % 3)
            send_message(producer, TOPIC, b"next")
        for thread in threads:
            thread.join()
    return load(history)


def judged(directory: Path, recording: Recording) -> Result:
    """The verdict on a recording's steps."""
    steps = project(recording, TOPIC, 0)
    write(directory / "steps", steps.events, steps.meta)
    return judge([directory / "steps"], engine="local")


@pytest.mark.parametrize("policy", ["strict", "strict-clone", pytest.param("rocketmq-5", marks=pytest.mark.long)])
def test_a_served_broker_follows_its_law(tmp_path: Path, policy: str) -> None:
    """Whatever its threads did, some order of what they recorded is a run of the law, and nothing is missing."""
    recording = recorded(tmp_path, policy)
    result = judged(tmp_path, recording)

    assert (result.verdict, result.findings, result.gaps) == ("valid", [], [])
    assert {"hold", "run", "append", "make_visible"} <= {event.event for event in recording.events}


def test_what_was_there_before_is_not_part_of_the_run(tmp_path: Path) -> None:
    """A broker that starts with messages follows its law from where the queue stood; its consumers begin there too."""
    recording = recorded(tmp_path, "strict", consumers=1, first=3)
    result = judged(tmp_path, recording)

    assert (
        min(event.offset for event in recording.events if event.event == "request_received" and event.code == 11) == 3
    )
    assert (result.verdict, result.findings) == ("valid", [])


def test_planted_a_read_that_misses_a_visible_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker whose first read does not see what is visible takes a step that the law does not have."""
    right = PullRunner.look
    seen: list[str] = []

    def stale(self: PullRunner, pull: Pull, wanted: Any) -> Any:
        decision = right(self, pull, wanted)
        if isinstance(decision, Found) and not seen:
            seen.append("stale")
            return Miss(decision.read, wanted)
        return decision

    monkeypatch.setattr(PullRunner, "look", stale)
    result = judged(tmp_path, recorded(tmp_path, "strict", consumers=1))

    assert seen
    assert [finding.property for finding in result.findings] == [FOLLOWS_THE_LAW]
    assert result.verdict == "invalid"


def doubled_run(events: list[Event]) -> list[Event]:
    """A woken pull is run twice."""
    run = next(event for event in events if event.event == "run")
    at = events.index(run)
    return [
        *events[: at + 1],
        msgspec.structs.replace(run, after_ns=run.before_ns + 1, before_ns=run.before_ns + 2),
        *events[at + 1 :],
    ]


def early_visibility(events: list[Event]) -> list[Event]:
    """A message is visible before it is in the log."""
    visible = next(event for event in events if event.event == "make_visible")
    append = next(event for event in events if event.event == "append")
    moved = msgspec.structs.replace(visible, after_ns=append.after_ns - 2, before_ns=append.after_ns - 1)
    return [moved if event is visible else event for event in events]


def wrong_offset(events: list[Event]) -> list[Event]:
    """A pull reads one message more than there is."""
    read = next(event for event in events if event.event == "pull_read" and event.offset > 0)
    return [msgspec.structs.replace(read, offset=read.offset + 1) if event is read else event for event in events]


@pytest.mark.parametrize("spoil", [doubled_run, early_visibility, wrong_offset])
def test_planted_faults_in_steps_are_found(tmp_path: Path, spoil: Callable[[list[Event]], list[Event]]) -> None:
    """A correct record with one changed step is not a run of the spec."""
    steps = project(recorded(tmp_path, "strict-clone"), TOPIC, 0)
    spoilt = [msgspec.structs.replace(event, sequence=at) for at, event in enumerate(spoil(steps.events))]
    write(tmp_path / "steps", spoilt, steps.meta)

    assert judge([tmp_path / "steps"], engine="local").verdict == "invalid"


def test_a_recording_that_the_law_has_no_consumers_for_is_refused(tmp_path: Path) -> None:
    """A consumer that takes one message at a time, or jumps, or a second source, is named and nothing is judged."""
    recording = recorded(tmp_path, "strict", consumers=1)
    jump = next(event for event in recording.events if event.event == "request_received" and event.offset > 0)
    jumping = [msgspec.structs.replace(event, offset=0) if event is jump else event for event in recording.events]
    restarted = [*recording.events, msgspec.structs.replace(recording.events[0], source="again")]

    with pytest.raises(NotProjectableError, match=r"asks for 0; the specification's consumer is at"):
        project(Recording(jumping, recording.meta), TOPIC, 0)
    with pytest.raises(NotProjectableError, match="2 sources"):
        project(Recording(restarted, recording.meta), TOPIC, 0)
    with pytest.raises(NotProjectableError, match="left messages"):
        project(recorded(tmp_path / "small", "strict", consumers=1, count_max=1), TOPIC, 0)
