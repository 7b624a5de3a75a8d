"""One of two Java brokers, 4.9.7 and 5.5.0, is lost in every way: as with two of ours."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from model_tests.client.failing.servers import JavaServer
from model_tests.client.one_of_two import QUEUES, Two, TwoReport, all_ways, check_reports, killed, wait_for_topic
from model_tests.conformance.java_broker import VERSIONS, JavaUnavailableError, resolve

from longpoll_broker.testing import client_scenarios as stories
from longpoll_client import Admin

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=VERSIONS)
def two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    """Two brokers of each version at one name server; skipped where Java or its jars cannot be had."""
    try:
        class_path = resolve(tmp_path_factory.mktemp("jars"), str(request.param))
    except JavaUnavailableError as error:
        pytest.skip(f"JAVA BROKER NOT TRIED: {error}")
    with ExitStack() as stack:
        kept = JavaServer(tmp_path_factory.mktemp("kept"), class_path, "broker-a")
        stack.callback(kept.close)
        kept.start()
        lost = JavaServer(tmp_path_factory.mktemp("lost"), class_path, "broker-b", kept)
        stack.callback(lost.close)
        lost.start()
        yield Two(kept, lost)


@pytest.fixture
def make_topic(two: Two, caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """Makes topics of both."""
    caplog.set_level(logging.ERROR, "longpoll_client")
    name_server = "{}:{}".format(*two.name_server)
    with Admin(stories.RUNTIME, name_server) as admin:
        stories.wait_for(lambda: len(admin.masters()) == 2, "both brokers are registered")

    def make() -> str:
        topic = f"story-{uuid.uuid4().hex[:12]}"
        with Admin(stories.RUNTIME, name_server) as admin:
            admin.create_topic(topic, QUEUES)
        wait_for_topic(two, topic)
        return topic

    return make


@pytest.mark.parametrize("lose", [all_ways, killed])
def test_the_other_broker_serves_on(
    lose: Callable[[Two, Callable[[], str]], list[TwoReport]], two: Two, make_topic: Callable[[], str]
) -> None:
    """Nothing is lost or out of order, and sends are back at both within 10 s."""
    check_reports(lose(two, make_topic))
