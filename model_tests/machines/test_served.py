"""The property suite over the network passes with our broker and fails for each injected fault."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.suite import STRICT, EmbeddedBroker, RocketMQMachine, run_suite
from model_tests.support.suite.model import (
    NOT_FOUND,
    Answer,
    Read,
    Stored,
    WireMessage,
    WireQueue,
)
from model_tests.support.suite.requests import Draft, PullTerms, Wanted

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.hold import pull_processor, pull_runner
from longpoll_broker.hold.hold_table import Key
from longpoll_broker.hold.pull_runner import PullAnswers
from longpoll_broker.io.channel import Outbox
from longpoll_judge.run.pipeline import judge
from longpoll_kit.errors import ViolationError
from longpoll_kit.model import Allowances, Ask
from longpoll_kit.run import KitReport
from longpoll_protocol.log_record import MAGIC_V1
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import STRICT as STRICT_POLICY
from longpoll_spec.policy import preset, with_knob

RULES = {rule.function.__wrapped__.__name__ for rule in RocketMQMachine.setup_state().rules}
HURRIED = attrs.evolve(STRICT, patience_ms=1_500, queue_file_units=40)
"""A policy with a shorter `patience_ms`, which shortens the tests with injected faults without changing their results.
"""


def run(broker: EmbeddedBroker, *, max_examples: int = 40, step_count: int = 40, seed: int | None = None) -> KitReport:
    return run_suite(broker.runtime, broker, max_examples=max_examples, step_count=step_count, seed=seed, shrink=False)


def falsified(report: KitReport) -> str:
    """Return the falsified properties of a report, even if some kinds of polls have not been seen."""
    return report.why if report.verdict == "invalid" else ""


@pytest.mark.parametrize("policy", [pytest.param("strict", marks=pytest.mark.long), "strict-clone"])
def test_the_served_broker_keeps_the_model(tmp_path: Path, policy: str) -> None:
    with EmbeddedBroker(RealRuntime(), str(tmp_path), policy=preset(policy)) as subject:
        report = run(subject, max_examples=6)
    assert not falsified(report), report
    assert sum(report.rule_counts.values()) > 100


@pytest.mark.parametrize(
    ("policy", "config", "step_count"),
    [("strict", BrokerConfig(io_thread_count=2), 40), ("rocketmq-4.9", BrokerConfig(scan_period_ms=100), 25)],
    ids=["a second thread", "rocketmq"],
)
def test_the_served_broker_keeps_its_promises_under_concurrency(
    policy: str, config: BrokerConfig, step_count: int, tmp_path: Path
) -> None:
    """With two threads, pulls and sends overlap. rocketmq-4.9 promises only answers that are at most one scan late."""
    with EmbeddedBroker(RealRuntime(), str(tmp_path), policy=preset(policy), config=config) as subject:
        report = run(subject, max_examples=4, step_count=step_count)
    assert not falsified(report), report


def test_the_history_of_the_suite_is_valid(tmp_path: Path) -> None:
    with EmbeddedBroker(
        RealRuntime(), str(tmp_path / "store"), can_restart=False, record_directory=str(tmp_path / "history")
    ) as subject:
        report = run(subject, max_examples=5)
    assert not falsified(report), report
    result = judge([tmp_path / "history" / "1"], engine="local", wake_ms=5_000, late_ms=2_000)
    assert (result.verdict, result.findings, result.gaps) == ("valid", [], []), f"seed {report.seed}"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("policy", ["strict", "strict-clone", "rocketmq-4.9"])
def test_the_served_broker_keeps_the_model_for_long(tmp_path: Path, policy: str) -> None:
    """Every rule runs many times. There are fewer examples if each deadline must wait for a scan of 5 s."""
    with EmbeddedBroker(RealRuntime(), str(tmp_path), policy=preset(policy)) as subject:
        scans = subject.expectations.scan_period_ms is not None
        report = run(subject, max_examples=8 if scans else 200, step_count=80)
    assert not falsified(report), report
    assert report.rule_counts.keys() >= RULES


WINDOW_S = 0.025
"""How long a pull waits between its read and its hold, in seconds.

Two dozen pulls that wait one after the other must not exceed the client's patience."""


class WideningRuntime(RealRuntime):
    """A runtime that waits, between a pull's read and its hold, for the notification of an arrival.

    The window in which RocketMQ loses a wake is therefore open for as long as another connection needs to send into it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.notified = threading.Event()

    def step(self, action: str) -> None:
        if action == "pull_read":
            self.notified.clear()
        elif action == "hold":
            self.notified.wait(WINDOW_S)


@attrs.define(eq=False)
class WidenedSubject(EmbeddedBroker):
    def started(self, broker: Broker) -> None:
        runtime, notify = self.runtime, broker.hold_service.notify
        assert isinstance(runtime, WideningRuntime)

        def telling(key: Key, visible_end: int, tags_code: int | None, outbox: Outbox) -> None:
            notify(key, visible_end, tags_code, outbox)
            runtime.notified.set()

        broker.hold_service.notify = telling  # type: ignore[method-assign]


def widened(directory: Path) -> KitReport:
    policy = with_knob(STRICT_POLICY, "recheck_after_hold=none")
    config = BrokerConfig(io_thread_count=2)
    subject = WidenedSubject(
        WideningRuntime(), str(directory), policy=policy, config=config, expectations=HURRIED, can_restart=False
    )
    with subject:
        return run(subject, max_examples=200, step_count=30)


def test_without_the_recheck_a_wake_is_lost(tmp_path: Path) -> None:
    """Strict without its recheck loses the wake of a pull if a message arrives between the pull's read and its hold.

    The lost wake breaks the property only if the message was acknowledged after the pull began. `cancel` and
    `send_one_way` overtake a pull as well as `cross` does, so any of these steps may have sent the message.
    """
    report = widened(tmp_path)
    assert report.property == "no_lost_wakeup", report


Plant = Callable[[pytest.MonkeyPatch], None]


def early_deadline(patch: pytest.MonkeyPatch) -> None:
    """Hold each pull 30 ms less than requested."""
    granted = pull_processor.PullProcessor._granted_ms
    patch.setattr(
        pull_processor.PullProcessor, "_granted_ms", lambda service, asked_ms: granted(service, asked_ms) - 30
    )


def flipped_bit(patch: pytest.MonkeyPatch) -> None:
    """Change the first byte of the first body of every answer, or the first byte of its topic's length."""
    encode = PullAnswers.encode

    def flipped(*arguments: object) -> list[object]:
        head, *records = encode(*arguments)  # type: ignore[arg-type]
        if not records:
            return [head]
        first = bytearray(records[0])
        first[88] ^= 1
        return [head, first, *records[1:]]

    patch.setattr(PullAnswers, "encode", flipped)


def second_answer(patch: pytest.MonkeyPatch) -> None:
    answer = pull_runner.PullRunner.answer

    def twice(*arguments: object) -> None:
        answer(*arguments)  # type: ignore[arg-type]
        answer(*arguments)  # type: ignore[arg-type]

    patch.setattr(pull_runner.PullRunner, "answer", twice)


def nothing(*_arguments: object) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("plant", "finding"),
    [
        (early_deadline, "ms too early"),
        (flipped_bit, "a pull's body"),
        (second_answer, "a second answer"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_an_injected_fault_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant, finding: str
) -> None:
    plant(monkeypatch)
    expectations = attrs.evolve(HURRIED, late_ms=300)
    with EmbeddedBroker(RealRuntime(), str(tmp_path), expectations=expectations) as subject:
        report = run(subject, max_examples=60)
    assert finding in falsified(report), report


@attrs.define(eq=False)
class FaultySubject(EmbeddedBroker):
    """A subject that changes the store between a stop and the next start."""

    between: Callable[[Path], None] = nothing

    def restart(self) -> None:
        self.broker.stop()
        self.between(Path(self.directory))
        self.broker = self._start()


def lose_last_message(directory: Path) -> None:
    """Overwrite the mark of the log's last record."""
    mark = MAGIC_V1.to_bytes(4)
    for path in sorted((directory / "commitlog").iterdir(), reverse=True):
        content = bytearray(path.read_bytes())
        at = content.rfind(mark)
        if at >= 0:
            content[at : at + 4] = bytes(4)
            path.write_bytes(content)
            return


def lose_group_offsets(directory: Path) -> None:
    for path in (directory / "config").glob("consumerOffset.json*"):
        path.unlink()


@pytest.mark.parametrize(
    ("between", "finding"), [(lose_last_message, "has offsets 0 to"), (lose_group_offsets, "was committed")]
)
def test_data_lost_at_a_restart_is_found(tmp_path: Path, between: Callable[[Path], None], finding: str) -> None:
    with FaultySubject(RealRuntime(), str(tmp_path), between=between, expectations=HURRIED) as subject:
        report = run(subject, max_examples=60)
    assert finding in falsified(report), report


ALL = Wanted("*")
SECOND = 10**9
LATER = 100 * SECOND


def queue_of(*tags: str, file_units: int = 1_000) -> WireQueue:
    """Return a queue of messages with these tags; message n was acknowledged just after second n."""
    queue = WireQueue("T@0", Allowances(), topic="T", queue_id=0, file_units=file_units)
    for number, tag in enumerate(tags):
        queue.sent(Draft(b"body %d" % number, tag), number * SECOND, number * SECOND + 1, 100 * number)
    return queue


def pull_of(offset: int, wanted: Wanted = ALL, *, timeout_ms: int = 0, begun_ns: int = LATER) -> Ask:
    """Return a pull from this offset on; by default it begins after all messages were acknowledged."""
    return Ask(1, "T@0", max(offset, 0), PullTerms(wanted=wanted, offset=offset), timeout_ms, begun_ns)


def judge_answer(
    queue: WireQueue, pull: Ask, answer: Answer, ended_ns: int = LATER, cancelled_ns: int | None = None
) -> None:
    pull.answer, pull.ended_ns, pull.cancelled_ns = answer, ended_ns, cancelled_ns
    queue.judge(pull)


def answer_of(queue: WireQueue, read: Read, end: int) -> Answer:
    """Return the answer that a correct broker makes from a read."""
    stored = [
        Stored(
            queue.topic, queue.queue_id, offset, 100 * offset, queue.messages[offset].body,
            {**queue.known[offset].properties, "CLUSTER": "c"},
        )
        for offset in read.offsets
    ]  # fmt: skip
    bodies = [each.body for each in stored]
    return Answer(bodies, position_next=read.offset_next, code=read.code, offset_min=0, offset_max=end, stored=stored)


@given(st.lists(st.sampled_from(["a", "b", ""]), max_size=8), st.data())
def test_an_answer_for_any_possible_end_is_right(tags: list[str], data: st.DataObject) -> None:
    """An answer is right for every end between the request and now, and wrong for ends before the request."""
    queue = queue_of(*tags)
    asked = data.draw(st.integers(0, queue.end))
    seen = data.draw(st.integers(0, queue.end))
    wanted = data.draw(st.sampled_from([ALL, Wanted("a")]))
    pull = pull_of(data.draw(st.integers(0, queue.end)), wanted, begun_ns=asked * SECOND)
    answer = answer_of(queue, queue.read(pull.position.offset, wanted, 32, seen), seen)
    with nullcontext() if seen >= asked else pytest.raises(ViolationError, match="maxOffset"):
        judge_answer(queue, pull, answer)


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"position_next": 4}, "expected Read"),
        ({"offset_min": 1}, "minOffset is 1"),
        ({"offset_max": 9}, "maxOffset is 9"),
        ({"code": NOT_FOUND, "stored": ()}, "expected Read"),
        ({"stored": ()}, "expected Read"),
    ],
)
def test_a_wrong_answer_is_refused(change: dict[str, Any], finding: str) -> None:
    """A right answer with one changed number is a violation."""
    queue = queue_of("a", "b", "a")
    right = answer_of(queue, queue.read(0, ALL, 32, 3), 3)
    judge_answer(queue, pull_of(0), right)
    with pytest.raises(ViolationError, match=finding):
        judge_answer(queue, pull_of(0), attrs.evolve(right, **change))


@pytest.mark.parametrize(
    ("sent", "delivered", "is_right"),
    [
        ({"WAIT": "false"}, {}, True),
        ({"WAIT": "false"}, {"WAIT": "false"}, True),
        ({"WAIT": "false"}, {"WAIT": "true"}, False),
        ({"empty": ""}, {}, True),
        ({"empty": ""}, {"empty": "x"}, False),
        ({"k": "v"}, {"k": "v", "CLUSTER": "c", "UNIQ_KEY": "1"}, True),
        ({"k": "v", "UNIQ_KEY": "2"}, {"k": "v", "UNIQ_KEY": "1"}, False),
        ({"k": "v"}, {"k": "v", "more": "x"}, False),
        ({"k": "v"}, {}, False),
    ],
    ids=str,
)
def test_the_property_wait_may_be_kept_or_dropped(
    sent: dict[str, str], delivered: dict[str, str], is_right: bool
) -> None:
    """5.x keeps the property WAIT and 4.9 drops it; neither version may change it or add a property."""
    assert WireMessage(0, b"", 0, properties=sent).is_given_back(delivered) == is_right


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"body": b"other"}, "has body"),
        ({"topic": "U"}, "claims to be in U@0"),
        ({"queue_id": 1}, "claims to be in T@1"),
        ({"physical_offset": 7}, "has log offset 7"),
        ({"properties": {"TAGS": "b"}}, "has properties"),
        ({"properties": {"TAGS": "a", "KEYS": "k"}}, "has properties"),
        ({"properties": {}}, "has properties"),
    ],
)
def test_a_wrong_message_is_refused(change: dict[str, Any], finding: str) -> None:
    """A right message with one changed part is a violation."""
    queue = queue_of("a")
    right = answer_of(queue, queue.read(0, ALL, 32, 1), 1)
    with pytest.raises(ViolationError, match=finding):
        judge_answer(queue, pull_of(0), attrs.evolve(right, stored=[attrs.evolve(right.stored[0], **change)]))
