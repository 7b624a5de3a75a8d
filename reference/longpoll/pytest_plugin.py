"""Pytest fixtures for programs that use a broker; pytest finds them when longpoll is installed.

`longpoll_broker` is a new broker, or a running one (`--longpoll-name-server`). `longpoll_topic` is a new topic.
`longpoll_client` has clients that close with the test. `longpoll_history` records the test's history and judges it at
the end. The fixtures import slow modules on first use.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from attrs import define, field, frozen

if TYPE_CHECKING:
    from longpoll_client import Admin, ConsumerConfig, Producer, PullConsumer
    from longpoll_judge.contract.result import Result
    from longpoll_runtime.real import RealRuntime

NAME_SIZE_MAX: Final = 80
"""Most characters of a test's name in its topic's name."""
FINDINGS_MAX: Final = 5
"""Most findings that a failure lists; the history has all of them."""


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
    """The directory of the recorded history; None without one."""
    ends: ExitStack = field(factory=ExitStack)

    def close(self) -> None:
        """Stop the test's own broker and complete the history. A second call does nothing."""
        self.ends.close()


@define
class ClientsOfTest:
    """Clients of a broker, created on first use and closed before the broker."""

    broker: BrokerOfTest
    _producer: Producer | None = None
    _admin: Admin | None = None

    @property
    def producer(self) -> Producer:
        """The test's producer."""
        from longpoll_client import Producer  # noqa: PLC0415 - not every test needs one

        if self._producer is None:
            self._producer = self.broker.ends.enter_context(Producer(self.broker.runtime, self.broker.name_server))
        return self._producer

    @property
    def admin(self) -> Admin:
        """The test's administrator."""
        from longpoll_client import Admin  # noqa: PLC0415 - not every test needs one

        if self._admin is None:
            self._admin = self.broker.ends.enter_context(Admin(self.broker.runtime, self.broker.name_server))
        return self._admin

    def consumer(self, topic: str, config: ConsumerConfig | None = None) -> PullConsumer:
        """A started consumer of a topic, for `poll`.

        Args:
            topic: The topic to subscribe to.
            config: Its configuration. Default: a new group that starts at the topic's first message.
        """
        from longpoll_client import ConsumerConfig, PullConsumer, StartAt  # noqa: PLC0415 - not every test needs one

        config = config or ConsumerConfig(f"group-{uuid.uuid4().hex}", start_at=StartAt.FIRST, waits_for_topics=False)
        made = PullConsumer(self.broker.runtime, self.broker.name_server, config)
        consumer = self.broker.ends.enter_context(made)
        consumer.subscribe(topic)
        consumer.start()
        return consumer


@frozen
class HistoryOfTest:
    """The recorded history of a test."""

    directory: Path
    broker: BrokerOfTest

    def judge(self) -> Result:
        """Stop the broker or the proxy, and judge the history; raises UserError without the extra `judge`."""
        import longpoll  # noqa: PLC0415 - a slow import

        self.broker.close()
        return longpoll.judge(self.directory)


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


@pytest.fixture
def longpoll_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerOfTest]:
    """A broker with its name server: a new one in this process, or an external one."""
    directory = tmp_path / "longpoll-history" if "longpoll_history" in request.fixturenames else None
    elsewhere = request.config.getoption("--longpoll-name-server")
    with ExitStack() as ends:
        if elsewhere is None:
            made = _own(str(request.config.getoption("--longpoll-policy")), directory, ends)
        else:
            made = _elsewhere(str(elsewhere), directory, ends)
        yield made


def _own(policy: str, directory: Path | None, ends: ExitStack) -> BrokerOfTest:
    from longpoll.embedded import Broker  # noqa: PLC0415 - not every test needs one

    broker = ends.enter_context(Broker(policy=policy, record=directory))
    return BrokerOfTest(broker.name_server, broker.runtime, broker.address, directory, ends)


def _elsewhere(name_server: str, directory: Path | None, ends: ExitStack) -> BrokerOfTest:
    from longpoll.questions import observe  # noqa: PLC0415 - not every test needs one
    from longpoll_runtime.real import RealRuntime  # noqa: PLC0415

    if directory is not None:
        observer = ends.enter_context(observe(record=directory, name_server=name_server))
        assert observer.name_server_address is not None
        name_server = "{}:{}".format(*observer.name_server_address)
    return BrokerOfTest(name_server, RealRuntime(), directory=directory, ends=ends)


@pytest.fixture
def longpoll_client(longpoll_broker: BrokerOfTest) -> ClientsOfTest:
    """A producer, an admin and consumers of the broker; they close with the test."""
    return ClientsOfTest(longpoll_broker)


@pytest.fixture
def longpoll_topic(request: pytest.FixtureRequest, longpoll_client: ClientsOfTest) -> str:
    """A new topic with one queue, whose name begins with the test's name."""
    plain = re.sub("[^a-zA-Z0-9_-]+", "-", request.node.name)[:NAME_SIZE_MAX].strip("-")
    topic = f"{plain}-{time.time_ns():x}-{uuid.uuid4().hex[:8]}"
    longpoll_client.admin.create_topic(topic, 1)
    return topic


@pytest.fixture
def longpoll_history(request: pytest.FixtureRequest, longpoll_broker: BrokerOfTest) -> Iterator[HistoryOfTest]:
    """Records the test's history and judges it at the end of the test; a violation fails the test.

    A verdict `unknown` appears in the report's section "longpoll" and does not fail the test.
    """
    assert longpoll_broker.directory is not None
    history = HistoryOfTest(longpoll_broker.directory, longpoll_broker)
    yield history
    result = history.judge()
    if result.verdict == "invalid":
        raise ViolationError(told(result, history.directory))
    said = "; ".join(str(gap["why"]) for gap in result.gaps) or f"{result.requests} pulls were judged"
    request.node.add_report_section("teardown", "longpoll", f"the history is {result.verdict}: {said}")


def told(result: Result, directory: Path) -> str:
    """The violations in words, and the command that shows more."""
    lines = [f"{each.property}: {each.why}" for each in result.findings[:FINDINGS_MAX]]
    more = len(result.findings) - FINDINGS_MAX
    lines += [f"and {more} more"] if more > 0 else []
    return "\n".join(["the broker violated its promises:", *lines, f"for details run: longpoll judge {directory}"])
