"""One of two of our brokers is lost, in every way: sends go to the other, and what it has goes on being consumed."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import attrs
import pytest
from model_tests.client.failing.servers import OurServer
from model_tests.client.one_of_two import QUEUES, Two, TwoReport, all_ways, check_reports, killed, wait_for_topic
from model_tests.service.test_registration import header

from longpoll_broker.testing.raw_client import RawClient
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.headers import CreateTopicRequestHeader

EMPTY = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{%s},"dataVersion":{"counter":%d,"timestamp":7}}}'
ROW = b'"%s":{"topicName":"%s","readQueueNums":%d,"writeQueueNums":%d,"perm":6}'


class Registered:
    """Registers a broker that does so at no name server, with each topic that it is to have."""

    def __init__(self, two: Two, client: RawClient) -> None:
        self._two = two
        self._client = client
        self._topics: list[bytes] = []
        self._lock = threading.Lock()

    def make_topic(self) -> str:
        """A new topic that both brokers have, as their name server knows."""
        topic = f"story-{uuid.uuid4().hex[:12]}"
        made = CreateTopicRequestHeader(
            topic=topic, default_topic="TBW102", read_queue_nums=QUEUES, write_queue_nums=QUEUES
        )
        for server in (self._two.kept, self._two.lost):
            with RawClient(server.address) as client:
                assert client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, made.encode()).code == 0
        with self._lock:
            name = topic.encode()
            self._topics.append(ROW % (name, name, QUEUES, QUEUES))
            body = EMPTY % (b",".join(self._topics), len(self._topics))
            fields = header("broker-b", address="{}:{}".format(*self._two.lost.address))
            assert self._client.call(RequestCode.REGISTER_BROKER, fields, body).code == 0
        wait_for_topic(self._two, topic)
        return topic


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    """Two served brokers."""
    with ExitStack() as stack:
        servers = []
        for name in ("broker-a", "broker-b"):
            (tmp_path / name).mkdir()
            servers.append(OurServer(tmp_path / name, name))
            stack.callback(servers[-1].close)
            servers[-1].start()
        yield Two(*servers)


@pytest.fixture
def make_topic(two: Two, caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], str]]:
    """Makes topics of both."""
    caplog.set_level(logging.ERROR, "longpoll_client")
    with RawClient(two.name_server) as client:
        yield Registered(two, client).make_topic


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("lose", [all_ways, killed])
def test_the_other_broker_serves_on(
    lose: Callable[[Two, Callable[[], str]], list[TwoReport]], two: Two, make_topic: Callable[[], str]
) -> None:
    """Nothing is lost or out of order, and sends are back at both within 10 s."""
    check_reports(lose(two, make_topic))


def test_everything_that_can_be_wrong_is_named() -> None:
    """Each by itself, in a report that is good otherwise."""
    good = TwoReport(
        way="reset",
        is_orderly=True,
        acknowledged=100,
        lost=frozenset(),
        again_sent=2,
        tried_again=2,
        again_given=0,
        forgotten=0,
        out_of_order=0,
        kept_gap_s=3.0,
        kept_late_s=1.0,
        back_s=3.0,
    )
    assert good.faults() == []
    for change, words in (
        ({"lost": frozenset({7})}, "lost [7]"),
        ({"out_of_order": 1}, "out of order"),
        ({"again_given": 1}, "1 given again"),
        ({"again_sent": 3}, "3 copies after 2"),
        ({"kept_gap_s": 11.0}, "no send for 11.0 s"),
        ({"kept_late_s": 11.0}, "the other broker's messages came after 11.0 s"),
        ({"back_s": 11.0}, "back after 11.0 s"),
    ):
        assert attrs.evolve(good, **change).faults() == [words]
    assert attrs.evolve(good, way="killed", back_s=39.0).faults() == []
    assert attrs.evolve(good, way="killed", back_s=41.0).faults() == ["back after 41.0 s"]
