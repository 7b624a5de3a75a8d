"""Shared by all tests: Hypothesis settings, one Spark session, and checks for faults that a test might not notice.

A broker survives an exception in a request: it answers the request and logs the exception, so a broken invariant would
be only a line in the log. With the fixtures here, a broken invariant fails the test. A thread that ends by an exception
also fails the test that started it.

`quick` (the default) tries the same examples in each run of `make test`, so that a run does not depend on chance.
`long`, which `make nightly` sets by LONGPOLL_PROFILE=long, draws other examples from the seed of the night. The two
profiles have no deadlines, because a shared machine pauses, and a pause is not a fault.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, settings

from longpoll_runtime import threads

if TYPE_CHECKING:
    from longpoll_judge.run.spark.engine import SparkEngine

ID_LENGTH_MAX: Final = 100

ENDING_S: Final = 20.0
"""How many seconds a thread may take to end after it was asked to end, on a busy machine."""

# A shell starts background jobs with SIGINT ignored, so every test that sends Ctrl-C would have no effect.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "quick",
    deadline=None,
    max_examples=16,
    stateful_step_count=30,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile(
    "long",
    parent=settings.get_profile("quick"),
    max_examples=2_000,
    stateful_step_count=80,
    derandomize=False,
)
settings.load_profile(os.environ.get("LONGPOLL_PROFILE", "quick"))

# Test collection creates thousands of objects that stay, so the garbage collector is off until
# `pytest_collection_finish`.
gc.disable()
gc.set_threshold(50_000, 20, 50)


@pytest.hookimpl
def pytest_itemcollected(item: pytest.Item) -> None:
    """Ignore warnings about sockets that PySpark closes only with the last reference to its results.

    The tests of a file in `peers` share a worker, because they share a Java broker that takes a core while it starts.
    """
    if item.get_closest_marker("peers") and not item.get_closest_marker("xdist_group"):
        item.add_marker(pytest.mark.xdist_group(item.path.stem))
    if item.get_closest_marker("spark"):
        item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.hookimpl
def pytest_collection_finish() -> None:
    """Limit garbage collection to objects made after test collection, which saves a tenth of the processor time.

    Also report sockets that modules opened on import, because pytest would report such a socket only when the worker
    ends, without the module that opened it. Only the first worker checks this, because all workers import the same
    modules.
    """
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
        opened = [each for each in gc.get_objects() if type(each) is socket.socket and each.fileno() >= 0]
        assert opened == [], "a test module opened a socket during its import"
    gc.freeze()
    gc.enable()


# A process that has loaded readline, as pytest does, passes a terminal width and height to its children.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse to run if test groups would be split between workers, because each would start a Spark session.

    pytest-xdist marks a group by `@name` at the end of a test's id.
    """
    if not getattr(config.option, "loadgroup", False):
        return
    # The tests that wait longest come first, so that no single worker waits for them at the end.
    items.sort(key=lambda item: item.path.parent.name != "verification")
    alone = [item.nodeid for item in items if item.get_closest_marker("xdist_group") and "@" not in item.nodeid]
    if alone:
        items.clear()
        # The reason is also sent to the controller, because pytest-xdist shows an error that a worker raises without
        # its text.
        config.workeroutput["alone"] = alone[0]  # type: ignore[attr-defined] # pytest-xdist's, in a worker


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    alone = getattr(node, "workeroutput", {}).get("alone")
    if alone:
        pytest.exit(f"pytest-xdist groups nothing with this pytest: use the versions of the lock ({alone})", 4)


@pytest.hookimpl
def pytest_make_parametrize_id(val: Any) -> str | None:
    """Shorten a long parameter in a test's id, because the id is sent between workers and printed."""
    if not isinstance(val, str | bytes) or len(val) <= ID_LENGTH_MAX:
        return None
    return f"{val[:ID_LENGTH_MAX]!r} and {len(val) - ID_LENGTH_MAX} more"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Free what a failed test left open, because a later warning about it would fail another test."""
    failed_before = item.session.testsfailed
    result = yield
    if item.session.testsfailed > failed_before:
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            vars(sys).pop(name, None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
    return result


class _BrokenInvariants(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and isinstance(record.exc_info[1], AssertionError):
            self.seen.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


_BROKEN: Final = _BrokenInvariants()


@pytest.fixture(autouse=True)
def broken_invariants() -> Iterator[list[str]]:
    """The broken invariants of a test. A test that breaks an invariant on purpose clears the list."""
    _BROKEN.seen.clear()
    logging.getLogger().addHandler(_BROKEN)
    yield _BROKEN.seen
    logging.getLogger().removeHandler(_BROKEN)
    assert _BROKEN.seen == []


@pytest.fixture(autouse=True)
def no_thread_outlives_its_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread to run into the next test; a thread that is about to end is joined.

    The threads of the shared Spark session may outlive a test: they start with the first stream and end with the
    session.
    """
    before = set(threading.enumerate())
    yield
    if "spark_engine" in request.fixturenames:
        return
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(ENDING_S)
    assert sorted(thread.name for thread in left if thread.is_alive()) == []


def _told_by_pytest(name: str, error: BaseException) -> None:
    """Raise the error on the thread that died, so that pytest reports a failure."""
    assert name == threading.current_thread().name
    raise error


@pytest.fixture(autouse=True, scope="session")
def _threads_that_die_fail_their_test() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "end_process", _told_by_pytest)
        yield


@pytest.fixture(scope="session")
def spark_engine() -> Iterator[SparkEngine]:
    """The one Spark session; tests that use it belong to the xdist group `spark`."""
    from longpoll_judge.run.spark.engine import open_engine  # noqa: PLC0415 - a run without Spark does not pay for it

    if settings.get_current_profile_name() == "quick":
        # The Spark jobs take a minute in total, so the JVM's second compiler would not pay off: running without it
        # saves a third of the time.
        os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    with open_engine("local[2]") as engine:
        yield engine
