"""Fixtures for tests of programs that talk to a broker: pytest finds them where longpoll is installed.

`longpoll_broker` is a broker of the test's own, or one that runs elsewhere (`--longpoll-name-server`). `longpoll_topic`
is a topic that no other test has, `longpoll_client` clients that end with the test, and `longpoll_history` records what
the test does and judges it at the end. Nothing heavy is imported before a fixture is asked for.
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
"""Characters of a test's name that its topic's name has, besides what makes it unique."""
FINDINGS_MAX: Final = 5
"""Most findings that a failure tells; the history has them all."""


class ViolationError(AssertionError):
    """The broker did what it must not while the test ran; the text says what, and where the evidence is."""


@frozen
class BrokerOfTest:
    """The broker that a test talks to."""

    name_server: str
    """HOST:PORT, for clients."""
    runtime: RealRuntime
    address: str = ""
    """Where the broker itself listens, as HOST:PORT; empty for one that runs elsewhere."""
    directory: Path | None = None
    """Where its history is recorded, if it is."""
    ends: ExitStack = field(factory=ExitStack)

    def close(self) -> None:
        """End it, if it is the test's own; what was recorded is whole then. A second call does nothing."""
        self.ends.close()


@define
class ClientsOfTest:
    """Clients of a broker, made when they are first asked for; they end before it does."""

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
        """A consumer that has begun to read a topic, for `poll`.

        Args:
            topic: What it subscribes.
            config: Its group and the rest; with None a group of its own, from the topic's first message on.
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
    """What is recorded of a test."""

    directory: Path
    broker: BrokerOfTest

    def judge(self) -> Result:
        """End the broker, or the proxy before it, and judge what was recorded; raises UserError without the judge."""
        import longpoll  # noqa: PLC0415 - Arrow takes its time to import

        self.broker.close()
        return longpoll.judge(self.directory)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which broker tests talk to."""
    group = parser.getgroup("longpoll", "brokers of tests (longpoll)")
    group.addoption(
        "--longpoll-name-server",
        metavar="HOST:PORT",
        help="Use the brokers of this name server, which run elsewhere, instead of one for each test.",
    )
    group.addoption(
        "--longpoll-policy",
        metavar="NAME",
        default="strict",
        help="How a test's own broker behaves; `longpoll policies` lists the names. Default: strict.",
    )


@pytest.fixture
def longpoll_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerOfTest]:
    """A broker with its name server: the test's own, in this process, or one that runs elsewhere."""
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
    """A producer, an administrator and consumers of the broker; they end with the test."""
    return ClientsOfTest(longpoll_broker)


@pytest.fixture
def longpoll_topic(request: pytest.FixtureRequest, longpoll_client: ClientsOfTest) -> str:
    """The name of a topic that no other test has, made with one queue; it begins with the test's name."""
    plain = re.sub("[^a-zA-Z0-9_-]+", "-", request.node.name)[:NAME_SIZE_MAX].strip("-")
    topic = f"{plain}-{time.time_ns():x}-{uuid.uuid4().hex[:8]}"
    longpoll_client.admin.create_topic(topic, 1)
    return topic


@pytest.fixture
def longpoll_history(request: pytest.FixtureRequest, longpoll_broker: BrokerOfTest) -> Iterator[HistoryOfTest]:
    """Records what the test does, and judges it when the test has ended: a violation is an error of the test.

    A verdict `unknown` stands in the report's section "longpoll" and is no error: nothing was seen.
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
    """What was violated, in words, and how to look further."""
    lines = [f"{each.property}: {each.why}" for each in result.findings[:FINDINGS_MAX]]
    more = len(result.findings) - FINDINGS_MAX
    lines += [f"and {more} more"] if more > 0 else []
    return "\n".join(["the broker did what it must not:", *lines, f"look further with: longpoll judge {directory}"])
