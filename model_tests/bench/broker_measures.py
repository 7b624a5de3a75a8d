"""Measures each figure of `broker_bench`. `Scale` has the sizes of the measurements.

The brokers are in `broker_sides`, the load in `model_tests.support.broker.harness`, the limits in `broker_figures`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Final

from attrs import define, field, frozen
from model_tests.bench.broker_figures import CEILING, FIGURES, OURS, Value, value_of
from model_tests.bench.broker_sides import Side
from model_tests.support.broker.harness.held import HeldPlan, hold
from model_tests.support.broker.harness.latency import (
    fan_outs,
    overshoots,
    percentile,
    round_trips,
    wakes,
    wakes_beside_new_queues,
)
from model_tests.support.broker.harness.throughput import Stored, fill, pulls, send_rate, sends
from model_tests.support.broker.harness.topics import make_topic, send_each
from model_tests.support.broker.harness.trivial import BODY_SIZE, PULLED, SENT, trivial_server
from model_tests.support.broker.harness.workers import busy_share, processor_seconds
from rich.progress import Progress

from longpoll.wire.race import RacePlan, race
from longpoll_client.errors import ClientError

OVERSHOOT_MS: Final = (1_000, 4_000)
"""The timeouts in ms of the pulls whose deadlines are measured."""
FAN_OUT: Final = (1_000, 10)
RACE_QUEUES: Final = 64
NEW_QUEUES: Final = 64
PULL_DEPTH: Final = 8
STORED: Final = Stored(200_000, BODY_SIZE // 32)


@frozen
class Scale:
    """The sizes of the measurements, which are all derived from the number of seconds for one rate."""

    seconds: float
    rounds: int

    def count(self, a_second: float) -> int:
        return max(10, int(a_second * self.seconds))


@define(eq=False)
class Bench:
    scale: Scale
    values: dict[str, dict[str, list[float]]] = field(factory=lambda: {key: {} for key in FIGURES})
    topic_count: int = 0

    def put(self, side: str, **measured: float) -> None:
        for key, value in measured.items():
            self.values[key].setdefault(side, []).append(value)

    def topic(self) -> str:
        self.topic_count += 1
        return f"BENCH-{self.topic_count}"

    # -- measurements of one broker in one round
    # -------------------------------------------------------------------------

    def idle(self, side: Side) -> None:
        self.put(side.name, idle=100 * busy_share(side.process_id, 2 * self.scale.seconds))

    def wake(self, side: Side) -> None:
        self.put(side.name, round_trip_p50=percentile(round_trips(side.address, self.topic(), 500), 0.5))
        taken = wakes(side.address, self.topic(), self.scale.count(250))
        self.put(side.name, wake_p50=percentile(taken, 0.5), wake_p99=percentile(taken, 0.99))

    def overshoot(self, side: Side) -> None:
        late = overshoots(side.address, self.topic(), self.scale.count(50), OVERSHOOT_MS)
        self.put(side.name, overshoot_p50=percentile(late, 0.5), overshoot_p99=percentile(late, 0.99))

    def new_queues(self, side: Side) -> None:
        new_topics = [self.topic() for _ in range(self.scale.count(2))]
        for topic in new_topics:
            make_topic(side.address, topic, NEW_QUEUES)
        taken = wakes_beside_new_queues(side.address, self.topic(), new_topics, NEW_QUEUES)
        self.put(side.name, new_queues=taken[-1])

    def racing(self, side: Side) -> None:
        topic = self.topic()
        make_topic(side.address, topic, RACE_QUEUES)
        send_each(side.address, topic, RACE_QUEUES)
        plan = RacePlan(topic, 2 * self.scale.seconds, RACE_QUEUES, late_ms=100.0, seed=self.topic_count)
        report = race(side.address, plan, first_offset=1, process_id=side.process_id)
        if report.trouble is not None:
            raise ClientError(f"the race on {side.name} was cut short: {report.trouble}")
        self.put(
            side.name,
            raced=report.delivered_count,
            raced_late=1e6 * report.later_than(500.0) / max(1, report.delivered_count),
            raced_unexplained=len(report.unexplained),
        )

    def fan_out(self, side: Side) -> None:
        for one in fan_outs(side.address, self.topic(), *FAN_OUT, rounds=self.scale.count(3)):
            self.put(side.name, fan_first=one.first_ms, fan_last=one.last_ms)

    def send(self, side: Side) -> None:
        used_s = processor_seconds(side.process_id)
        rate = sends(side.address, self.topic(), 1, seconds=self.scale.seconds / 2)
        used_s = processor_seconds(side.process_id) - used_s
        self.put(side.name, send_1=rate.per_second, send_us=1e6 * used_s / rate.count)

    def send_many(self, side: Side) -> None:
        rate = sends(side.address, self.topic(), 8, seconds=self.scale.seconds / 2)
        self.put(side.name, send_8=rate.per_second)

    def send_keys(self, side: Side) -> None:
        rate = sends(side.address, self.topic(), 1, seconds=self.scale.seconds / 2, has_keys=True)
        self.put(side.name, send_keys=rate.per_second)

    def pull(self, side: Side) -> None:
        topic = self.topic()
        stored = fill(side.address, topic, STORED.count)
        seconds = self.scale.seconds / 2
        self.put(
            side.name,
            pull_1=pulls(side.address, topic, stored, 1, seconds=seconds).per_second,
            pull_8=pulls(side.address, topic, stored, PULL_DEPTH, seconds=seconds).per_second,
        )

    def held(self, side: Side) -> None:
        self._hold(side, same_moment=False)

    def moment(self, side: Side) -> None:
        self._hold(side, same_moment=True)

    def _hold(self, side: Side, *, same_moment: bool) -> None:
        plan = HeldPlan(self.topic(), 10_000, idle_s=0.0 if same_moment else 4.0, same_moment=same_moment)
        make_topic(side.address, plan.topic, plan.queue_count)
        report = hold(side.address, side.process_id, side.memory_bytes, plan)
        self.put(side.name, accepted=plan.pull_count / report.accept_s)
        if same_moment:
            self.put(side.name, moment_last=report.late_max_ms)
            return
        self.put(
            side.name,
            held_bytes=report.private_bytes_each,
            held_late_p99=report.late_p99_ms,
            idle_held=100 * report.busy_share,
        )

    def ceiling(self, _side: Side) -> None:
        seconds = self.scale.seconds / 4
        with trivial_server(SENT, 1) as address:
            self.put(CEILING, round_trip_p50=percentile(round_trips(address, "T", 500), 0.5))
        for count in (1, 8):
            with trivial_server(SENT, count) as address:
                rate = send_rate(address, "T", count, seconds=seconds, warm_s=0.5)
                self.put(CEILING, **{f"send_{count}": rate.per_second})
        for depth in (1, PULL_DEPTH):
            with trivial_server(PULLED, 1) as address:
                rate = pulls(address, "T", STORED, depth, seconds=seconds, warm_s=0.5)
                self.put(CEILING, **{f"pull_{depth}": rate.per_second})


def measure(
    sides: Sequence[Side],
    variants: Sequence[Side],
    scale: Scale,
    progress: Progress,
    *,
    only: Container[str] | None = None,
) -> list[Value]:
    """Measure all figures (or only the methods of `Bench` in `only`) of every broker, alternating between the brokers.

    For `variants`, which are our broker with other settings, only wakes and sends are measured.

    Raises ClientError if an answer is wrong or missing.
    """
    bench = Bench(scale)
    # Load on the brokers would disturb `ceiling` and `idle`, so they come first. `held` and `moment` leave the largest
    # heaps, so they come last.
    works = [bench.ceiling, bench.idle]
    works += [
        bench.wake, bench.overshoot, bench.new_queues, bench.racing, bench.fan_out,
        bench.send, bench.send_many, bench.send_keys, bench.pull,
    ] * scale.rounds  # fmt: skip
    works += [bench.held, bench.moment]
    steps: list[tuple[str, Callable[[], None]]] = []
    for work in works:
        name = work.__name__
        if only is not None and name not in only:
            continue
        turns = [Side(CEILING, ("", 0), 0, int)] if name == "ceiling" else [*sides]
        turns += variants if name in {"wake", "send"} else []
        steps += [(f"{name}, {side.name}", partial(work, side)) for side in turns]
    task = progress.add_task("", total=len(steps))
    for name, step in steps:
        progress.update(task, description=name)
        step()
        progress.advance(task)
    return [value_of(FIGURES[key], measured) for key, measured in bench.values.items() if OURS in measured]
