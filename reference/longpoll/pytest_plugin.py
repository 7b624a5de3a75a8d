"""Pytest fixtures for programs that use a broker; pytest finds them when longpoll is installed.

`rocketmq_broker` is a new broker, or a running one (`--longpoll-name-server`). `rocketmq_topic` is a new topic.
`rocketmq_client` has clients that close with the test. `rocketmq_history` records the test's history and judges it at
the end. The fixtures import slow modules on first use.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest
from attrs import define, evolve, field, frozen

from longpoll_runtime.services import Closeable
from longpoll_spec.errors import UserError

if TYPE_CHECKING:
    from longpoll.embedded import Broker
    from longpoll_broker.config import BrokerConfig
    from longpoll_client import Admin, AsyncProducer, AsyncPullConsumer, Producer, PullConsumer
    from longpoll_judge.contract.result import Finding, Result
    from longpoll_runtime.host_pauses import HostPauseWatch
    from longpoll_runtime.real import RealRuntime

NAME_SIZE_MAX: Final = 80
"""The maximum number of characters of a test's name that become part of its topic's name."""
FINDINGS_MAX: Final = 5
"""The maximum number of findings that a failure lists; `longpoll judge` shows all of them."""
TIMED: Final = frozenset({"no_lost_wakeup", "answered_by_deadline"})
"""Properties that a pause of the machine can violate."""
WATCH_S: Final = 0.005
"""Seconds between two checks whether threads of a recorded broker wait for a processor."""


class ViolationError(AssertionError):
    """The broker violated a property during the test; the text names it and the recorded history."""


@frozen
class BrokerOfTest:
    """The broker of a test."""

    name_server: str
    """HOST:PORT, for clients."""
    runtime: RealRuntime
    address: str = ""
    """The broker's own address, HOST:PORT; empty for an external broker."""
    directory: Path | None = None
    """The directory of the recorded history; None if no history is recorded."""
    ends: ExitStack = field(factory=ExitStack)
    _own: Broker | None = None
    watch: HostPauseWatch | None = None
    """Measures the host pauses of this process while a history is recorded."""
    unix_ns: int = 0
    """Nanoseconds from the monotonic clock to Unix time, as in the recorded history."""

    @property
    def own(self) -> Broker:
        """The broker in this process: `stop`, `restart`, `pause`, `resume`. Raises UserError for an external broker."""
        if self._own is None:
            raise UserError("an external broker cannot be stopped from here; run without --longpoll-name-server")
        return self._own

    def stop(self) -> None:
        """Stop the broker and its name server; the store stays for `restart`."""
        self.own.stop()

    def restart(self) -> None:
        """Stop if needed, and serve the same store at the same addresses."""
        self.own.restart()

    def pause(self) -> None:
        """Read and answer nothing until `resume`."""
        self.own.pause()

    def resume(self) -> None:
        """Continue after `pause`."""
        self.own.resume()

    def relay(self) -> RelayOfTest:
        """A relay to the broker that fails on request: a context manager with a `name_server` for clients."""
        return RelayOfTest(self.own)

    def close(self) -> None:
        """Stop the test's own broker and complete the history. A second call does nothing."""
        self.ends.close()


class RelayOfTest(Closeable):
    """Passes all bytes between clients and a broker until a test makes it fail."""

    def __init__(self, broker: Broker) -> None:
        from longpoll.options.values import address_of  # noqa: PLC0415 - not every test needs one
        from longpoll.wire.relay import Relay  # noqa: PLC0415

        self._broker = Relay(address_of(broker.address))
        self._names = Relay(address_of(broker.name_server))
        there, here = broker.address.encode(), "{}:{}".format(*self._broker.address).encode()
        if len(there) != len(here):
            self.close()
            raise UserError("a relay needs ports of five digits; let the broker take any free port")
        self._names.rewrites = {there: here}

    @property
    def name_server(self) -> str:
        """HOST:PORT, for clients whose connections go through the relay."""
        return "{}:{}".format(*self._names.address)

    def delay(self, delay_s: float = 0.05) -> None:
        """Delay each chunk of bytes by this time; raises ConfigError for a negative delay."""
        from longpoll_client.checks import check_seconds  # noqa: PLC0415 - not every test needs one

        check_seconds("delay_s", delay_s, may_be_none=True)
        self._broker.slow_s = delay_s
        self._broker.begin("slow")

    def cut(self) -> None:
        """Reset the connections to the broker, and refuse new connections."""
        self._broker.begin("reset")

    def black_hole(self) -> None:
        """Accept connections to the broker and read their bytes, but drop all of them."""
        self._broker.begin("black hole")

    def heal(self) -> None:
        """Pass all bytes from now on; dropped bytes stay lost."""
        self._broker.end()

    def close(self) -> None:
        """End every connection."""
        self._broker.close()
        self._names.close()


@define
class ClientsOfTest:
    """Clients of a broker, created on first use and closed with the test, before the broker."""

    broker: BrokerOfTest
    ends: ExitStack
    _producer: Producer | None = None
    _admin: Admin | None = None

    @property
    def producer(self) -> Producer:
        """The test's producer."""
        from longpoll_client import Producer  # noqa: PLC0415 - not every test needs one

        if self._producer is None:
            self._producer = self.ends.enter_context(Producer(self.broker.name_server))
        return self._producer

    @property
    def admin(self) -> Admin:
        """The test's administrator."""
        from longpoll_client import Admin  # noqa: PLC0415 - not every test needs one

        if self._admin is None:
            self._admin = self.ends.enter_context(Admin(self.broker.name_server))
        return self._admin

    def consumer(self, topic: str, **options: Any) -> PullConsumer:
        """A started consumer of a topic, for `poll`.

        Args:
            topic: The topic to subscribe to.
            options: The options of `PullConsumer`. Default: a new group that starts at the topic's first message.
        """
        from longpoll_client import PullConsumer  # noqa: PLC0415 - not every test needs one

        return self.ends.enter_context(PullConsumer(self.broker.name_server, topics=topic, **self._options(options)))

    def async_producer(self) -> AsyncProducer:
        """A producer for the running event loop: `async with` it."""
        from longpoll_client import AsyncProducer  # noqa: PLC0415 - not every test needs one

        return AsyncProducer(self.broker.name_server)

    def async_consumer(self, topic: str, **options: Any) -> AsyncPullConsumer:
        """A consumer of a topic for the running event loop, with options as for `consumer`; `async with` starts it."""
        from longpoll_client import AsyncPullConsumer  # noqa: PLC0415 - not every test needs one

        return AsyncPullConsumer(self.broker.name_server, topics=topic, **self._options(options))

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        from longpoll_client import ConsumerConfig  # noqa: PLC0415 - not every test needs one

        group, config = f"group-{uuid.uuid4().hex}", ConsumerConfig(waits_for_topics=False)
        return {"group": group, "config": config, **options}


@frozen
class HistoryOfTest:
    """The recorded history of a test."""

    directory: Path
    broker: BrokerOfTest

    def judge(self) -> Result:
        """Stop the broker or the proxy, and judge the history; raises UserError without the extra `judge`.

        If the host paused while an answer was overdue, the judge's limits rise by the longest pause. The result's
        `thresholds` has the raised limits.
        """
        import longpoll  # noqa: PLC0415 - a slow import

        self.broker.close()
        result, paused_ms = longpoll.judge(self.directory), 0.0
        while (more_ms := self._paused_ms(result)) > paused_ms:
            result = longpoll.judge(
                self.directory,
                wake_ms=result.thresholds["wake_ms"] + more_ms - paused_ms,
                late_ms=result.thresholds["late_ms"] + more_ms - paused_ms,
            )
            paused_ms = more_ms
        return result

    def _paused_ms(self, result: Result) -> float:
        """The longest time that the machine paused while an answer was overdue."""
        paused_ms = 0.0
        for finding in result.findings:
            if finding.property in TIMED and finding.verdict == "violated" and self.broker.watch is not None:
                begin_ns, end_ns = due_ns(finding), int(finding.window_end_ms * 1e6)
                unix_ns = self.broker.unix_ns
                paused_ms = max(paused_ms, self.broker.watch.stalled_ms(begin_ns - unix_ns, end_ns - unix_ns))
        return paused_ms


def due_ns(finding: Finding) -> int:
    """Return the Unix time, in ns, at which a late answer was due.

    A woken pull is due when both the pull and its message have arrived. An expired pull is due at its deadline.
    """
    came = [event for event in finding.shown() if event["event"] != "answer_sent"]
    hold_ms = max(event.get("timeout_ms", 0) for event in came) if finding.property == "answered_by_deadline" else 0
    return int(max(event["after_ns"] for event in came)) + hold_ms * 1_000_000


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that choose the broker of the tests."""
    group = parser.getgroup("longpoll", "brokers for tests (longpoll)")
    group.addoption(
        "--longpoll-name-server",
        metavar="HOST:PORT",
        help="Use the running brokers of this name server. Default: start a new broker for each test.",
    )
    group.addoption(
        "--longpoll-policy",
        metavar="NAME",
        default="strict",
        help="Policy of the broker that a test starts; `longpoll policies` lists the names. Default: strict.",
    )


def broker_fixture(
    scope: Literal["function", "class", "module", "package", "session"] = "function",
    *,
    policy: str | None = None,
    record: bool | None = None,
    config: BrokerConfig | None = None,
) -> Any:
    """A fixture `rocketmq_broker` of another scope: assign it to that name in a `conftest.py` or a test module.

    Args:
        scope: The tests that share the broker.
        policy: The broker's policy. Default: that of `--longpoll-policy`.
        record: Whether to record and judge a history. Default: if the scope's first test uses `rocketmq_history`.
        config: Other options of the broker, such as the time until it checks an open transaction.
    """

    @pytest.fixture(scope=scope)
    def rocketmq_broker(
        request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[BrokerOfTest]:
        """A broker with its name server: a new one in this process, or an external one."""
        is_recorded = "rocketmq_history" in request.fixturenames if record is None else record
        directory = tmp_path_factory.mktemp("longpoll") / "longpoll-history" if is_recorded else None
        elsewhere = request.config.getoption("--longpoll-name-server")
        with ExitStack() as ends:
            watch = None if directory is None else _watch(ends)
            if elsewhere is None:
                made = _own(policy or str(request.config.getoption("--longpoll-policy")), directory, ends, config)
            else:
                made = _elsewhere(str(elsewhere), directory, ends)
            made = evolve(made, watch=watch, unix_ns=time.time_ns() - time.monotonic_ns())
            yield made
            # By now, every fixture and client that uses the broker has ended, in whichever order a test names the
            # fixtures.
            if directory is not None:
                _judge(HistoryOfTest(directory, made), request.node)

    return rocketmq_broker


rocketmq_broker = broker_fixture()


def _judge(history: HistoryOfTest, node: pytest.Item | pytest.Collector) -> None:
    result = history.judge()
    if result.verdict == "invalid":
        raise ViolationError(told(result, history.directory))
    said = "; ".join(str(gap["why"]) for gap in result.gaps) or f"{result.requests} pulls were judged"
    said += f"; limits: wake {result.thresholds['wake_ms']:g} ms, late {result.thresholds['late_ms']:g} ms"
    if isinstance(node, pytest.Item):
        node.add_report_section("teardown", "longpoll", f"the history is {result.verdict}: {said}")


def _watch(ends: ExitStack) -> HostPauseWatch:
    from longpoll_runtime.host_pauses import HostPauseWatch  # noqa: PLC0415 - not every test needs one

    watch = ends.enter_context(HostPauseWatch(sleep_s=WATCH_S))
    ends.callback(lambda: watch.wait_seen(time.monotonic_ns()))
    return watch


def _own(policy: str, directory: Path | None, ends: ExitStack, config: BrokerConfig | None) -> BrokerOfTest:
    from longpoll.embedded import Broker  # noqa: PLC0415 - not every test needs one

    broker = ends.enter_context(Broker(policy=policy, record=directory, config=config))
    return BrokerOfTest(broker.name_server, broker.runtime, broker.address, directory, ends, broker)


def _elsewhere(name_server: str, directory: Path | None, ends: ExitStack) -> BrokerOfTest:
    from longpoll.api import observe  # noqa: PLC0415 - not every test needs one
    from longpoll_runtime.real import RealRuntime  # noqa: PLC0415

    if directory is not None:
        observer = ends.enter_context(observe(record=directory, name_server=name_server))
        assert observer.name_server_address is not None
        name_server = "{}:{}".format(*observer.name_server_address)
    return BrokerOfTest(name_server, RealRuntime(), directory=directory, ends=ends)


@pytest.fixture
def rocketmq_client(rocketmq_broker: BrokerOfTest) -> Iterator[ClientsOfTest]:
    """A producer, an admin and consumers of the broker; they close with the test."""
    with ExitStack() as ends:
        rocketmq_broker.ends.callback(ends.close)
        yield ClientsOfTest(rocketmq_broker, ends)


@pytest.fixture
def rocketmq_topic(request: pytest.FixtureRequest, rocketmq_client: ClientsOfTest) -> str:
    """A new topic with one queue. The topic's name begins with the test's name."""
    plain = re.sub("[^a-zA-Z0-9_-]+", "-", request.node.name)[:NAME_SIZE_MAX].strip("-")
    topic = f"{plain}-{time.time_ns():x}-{uuid.uuid4().hex[:8]}"
    rocketmq_client.admin.create_topic(topic, 1)
    return topic


@pytest.fixture
def rocketmq_history(rocketmq_broker: BrokerOfTest) -> HistoryOfTest:
    """The recorded history. When the broker ends, the history is judged, and a violation is an error.

    A verdict `unknown` does not fail the test. If each test has its own broker, the report's section "longpoll" shows
    the verdict.
    """
    if rocketmq_broker.directory is None:
        raise pytest.UsageError("this broker records nothing; make it by broker_fixture(..., record=True)")
    return HistoryOfTest(rocketmq_broker.directory, rocketmq_broker)


def told(result: Result, directory: Path) -> str:
    """Describe the violations, and name the command that shows more."""
    lines = [f"{each.property}: {each.why}" for each in result.findings[:FINDINGS_MAX]]
    more = len(result.findings) - FINDINGS_MAX
    lines += [f"and {more} more"] if more > 0 else []
    return "\n".join(["the broker violated its promises:", *lines, f"for details run: longpoll judge {directory}"])
