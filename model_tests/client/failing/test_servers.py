"""The judge's verdict on a broker that stops in order and restarts, each run behind a proxy."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from model_tests.client.failing.run import OUR_LATE_MS
from model_tests.client.failing.servers import Observed, OurServer, judged
from model_tests.support.broker.raw_client import RawClient, pull_fields, send_fields

from longpoll_judge.contract.clause import STOPPING_MS
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.headers import QueryConsumerOffsetRequestHeader, UpdateConsumerOffsetRequestHeader

pytestmark = pytest.mark.timeout(120)
TOPIC, GROUP = "T", "G"
HOLD_MS = 20_000
GOES_ON_MS = STOPPING_MS + 500
"""So long the broker's second life lasts at least: longer than what tells of a stop goes on after it."""
STORED = 1
"""An offset that the group commits."""
COMMIT = UpdateConsumerOffsetRequestHeader(consumer_group=GROUP, topic=TOPIC, queue_id=0, commit_offset=STORED).encode()
QUERY = QueryConsumerOffsetRequestHeader(consumer_group=GROUP, topic=TOPIC, queue_id=0).encode()


def restarted(home: Path, between: Callable[[], None], late_ms: float = OUR_LATE_MS) -> tuple[int, dict[str, object]]:
    """Stop a broker while it holds a pull, and restart it after another action.

    Returns the answer to the held pull and the verdict. The second run lasts as long as a pull is held, if one is.
    """
    with ExitStack() as stack:
        observed = stack.enter_context(Observed(OurServer(home), home))
        observed.start()
        with closing(RawClient(observed.address)) as client:
            assert client.call(RequestCode.SEND_MESSAGE_V2, send_fields(TOPIC), b"body").code == ResponseCode.SUCCESS
            assert client.call(RequestCode.UPDATE_CONSUMER_OFFSET, COMMIT).code == ResponseCode.SUCCESS
            opaque = client.send(RequestCode.PULL_MESSAGE, pull_fields(TOPIC, STORED, timeout_ms=HOLD_MS, group=GROUP))
            # What is answered after it was asked later: the pull has come.
            assert client.call(RequestCode.QUERY_CONSUMER_OFFSET, QUERY).code == ResponseCode.SUCCESS
            stopping = threading.Thread(target=observed.stop)
            stopping.start()
            held = client.reply(opaque)
            stopping.join()
        between()
        observed.start()
        with closing(RawClient(observed.address)) as client:
            client.call(RequestCode.PULL_MESSAGE, pull_fields(TOPIC, STORED, timeout_ms=GOES_ON_MS, group=GROUP))
        observed.close()
        assert held is not None
        return held.code, judged(observed.histories, late_ms, home)


def messages(store: Path) -> None:
    """Lose every message."""
    for part in ("commitlog", "consumequeue"):
        shutil.rmtree(store / part)


@pytest.mark.long
def test_a_stop_that_loses_nothing_is_valid(tmp_path: Path) -> None:
    """A pull that the stop ends is not answered too early: the end of its life's record shows the stop."""
    held, result = restarted(tmp_path, lambda: None)
    assert held == ResponseCode.PULL_NOT_FOUND
    assert (result["verdict"], result["findings"], result["gaps"]) == ("valid", [], [])


@pytest.mark.long
def test_messages_that_are_lost_over_a_stop_are_found(tmp_path: Path) -> None:
    """By the judge, although two proxies saw it: the second one was there before the first one ended."""
    _held, result = restarted(tmp_path, lambda: messages(tmp_path / "store"), 100.0)
    assert result["verdict"] == "invalid"
    assert "pull.max.least" in str(result["findings"])


@pytest.mark.long
def test_offsets_that_are_lost_over_a_stop_are_found(tmp_path: Path) -> None:
    """By asking the broker itself."""
    with pytest.raises(AssertionError, match="offset 1 is 0 after a stop"):
        restarted(tmp_path, lambda: shutil.rmtree(tmp_path / "store" / "config"))
