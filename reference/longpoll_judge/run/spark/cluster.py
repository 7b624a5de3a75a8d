"""Chooses the Spark session: the caller's, Spark Connect, spark-submit's, or a new one.

A session that the judge did not open stays open and gets its settings back. Opening a new one: `session`. The work on
it: `engine`.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from attrs import frozen
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from longpoll_judge.errors import HistoryChangedError, SparkUnavailableError
from longpoll_judge.read.files import first_line
from longpoll_judge.run.spark.session import DEFAULT_MASTER, OF_QUERIES, is_local, open_session

REMOTE: Final = "SPARK_REMOTE"
"""The environment variable that names a server of Spark Connect, as for every PySpark program."""
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""The environment variable by which spark-submit hands over its Java process."""
CONNECT: Final = "sc://"
CONNECT_PORT: Final = 15_002
"""Where a server of Spark Connect listens unless its address says otherwise."""
CONNECT_S: Final = 10.0
JOB_GROUP: Final = "longpoll-judge"
"""The group of the judge's jobs in a session, and their tag on Spark Connect."""
_DESCRIPTION: Final = "spark.job.description"
_GROUP: Final = "spark.jobGroup.id"
_ASKED_ROWS: Final = 1 << 16
FAULT_CHARACTERS_MAX: Final = 500
_PYTHON_FAULT: Final = re.compile(r"(?!org\.|java\.)[A-Za-z_.]*(Error|Exception)\b.*: ")

_CHANGED: Final = re.compile(rf"[A-Za-z_.]*{HistoryChangedError.__name__}: (.+)")


@frozen
class Running:
    """A session, and what is known of where its work runs."""

    session: SparkSession
    is_here: bool
    """Whether its workers are processes of this driver, with what is installed here."""

    @property
    def parallel(self) -> int:
        """How many tasks run at once, as Spark says; of a server elsewhere into how many parts it cuts rows."""
        if not is_remote(self.session):
            return int(self.session.sparkContext.defaultParallelism)
        rows = self.session.range(_ASKED_ROWS).selectExpr("spark_partition_id() AS part").distinct()
        return max(rows.count(), 1)


def _active(master: str | None) -> SparkSession | None:
    """The session that this process already has; a process can have only one."""
    if SparkContext._active_spark_context is None:  # noqa: SLF001 - `getActiveSession` forgets it in other threads
        return None
    if master is not None:
        raise SparkUnavailableError("this process has a Spark session open: pass it as `session`, without a master")
    return SparkSession.builder.getOrCreate()


def is_remote(session: Any) -> bool:
    """Whether a session is one of Spark Connect, which has no context."""
    return type(session).__module__.startswith("pyspark.sql.connect")


@contextmanager
def open_cluster(
    master: str | None = None, conf: Mapping[str, str] | None = None, session: SparkSession | None = None
) -> Iterator[Running]:
    """Where to run, for as long as the block lasts.

    Args:
        master: A master's URL, or `sc://HOST:PORT` of a Spark Connect server. Unless it is given: SPARK_REMOTE, or the
            application that spark-submit started, or all cores of this machine.
        conf: Further settings, by Spark's names, for a session that is opened here.
        session: The caller's own, which stays open and gets its settings back; unless it is given, one that this
            process has open already.

    Raises `SparkUnavailableError`.
    """
    conf = conf or {}
    session = session or _active(master)
    if session is not None:
        with with_settings(session, OF_QUERIES | dict(conf)):
            yield Running(session, is_here=not is_remote(session) and is_local(session.sparkContext.master or ""))
        return
    remote = master if master and master.startswith(CONNECT) else "" if master else os.environ.get(REMOTE, "")
    if remote:
        with _connected(remote) as connected, with_settings(connected, OF_QUERIES | dict(conf)):
            yield Running(connected, is_here=False)
    elif SUBMITTED in os.environ:
        with _submitted(master, conf) as submitted, with_settings(submitted, OF_QUERIES):
            yield Running(submitted, is_here=is_local(submitted.sparkContext.master or ""))
    else:
        with open_session(master, conf) as own:
            yield Running(own, is_here=is_local(master or DEFAULT_MASTER))


@contextmanager
def _connected(remote: str) -> Iterator[SparkSession]:
    _check_listens(remote)
    try:
        session = SparkSession.builder.remote(remote).create()
    except ImportError as error:
        raise SparkUnavailableError(
            f"Spark Connect needs more than is installed: {sys.executable} -m pip install 'longpoll[connect]' "
            f"({first_line(error)})"
        ) from error
    except (PySparkException, OSError, ValueError) as error:
        raise _unanswered(remote, error) from error
    try:
        yield session
    finally:
        session.stop()


def _check_listens(remote: str) -> None:
    """Raise `SparkUnavailableError` if no server listens; otherwise the client would retry for minutes."""
    try:
        parts = urlsplit(remote.partition("/;")[0])
        socket.create_connection((parts.hostname or "", parts.port or CONNECT_PORT), CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise _unanswered(remote, error) from error


def _unanswered(remote: str, error: Exception) -> SparkUnavailableError:
    address = remote.partition("/;")[0]  # without its parameters, among which a token may be
    return SparkUnavailableError(f"no Spark Connect server answers at {address}: {first_line(error)}")


@contextmanager
def _submitted(master: str | None, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """The application that spark-submit started; with its Java process ends what runs in it."""
    builder = SparkSession.builder.appName("longpoll judge")
    for name, value in (({"spark.master": master} if master else {}) | dict(conf)).items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except PySparkException as error:
        raise SparkUnavailableError(f"Spark does not start: {first_line(error)}") from error
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def failures_told() -> Iterator[None]:
    """A job that fails is `SparkUnavailableError` with the line that says why, read while Spark is still there.

    One whose worker found another part than was looked over is `HistoryChangedError`, as it is without Spark.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:  # the second where Python fails while Spark plans a scan
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # A worker's own exception is the last line of its traceback, before the Java one begins.
        own = [line for line in lines if _PYTHON_FAULT.match(line)]
        text = (own or lines or ["it says nothing"])[-1 if own else 0]
        if (changed := _CHANGED.match(text)) is not None:
            raise HistoryChangedError(changed[1]) from error
        raise SparkUnavailableError(f"Spark could not do its work: {text[:FAULT_CHARACTERS_MAX]}") from error


@contextmanager
def stage(running: Running, text: str) -> Iterator[None]:
    """Label the jobs of this block with this text in Spark's UI; on Spark Connect they get a tag."""
    session = running.session
    if is_remote(session):
        session.addTag(JOB_GROUP)
        try:
            yield
        finally:
            session.removeTag(JOB_GROUP)
        return
    context: Any = session.sparkContext
    before = {name: context.getLocalProperty(name) for name in (_DESCRIPTION, _GROUP)}
    context.setLocalProperty(_DESCRIPTION, text)
    if before[_GROUP] is None:
        # A caller who has named a group may cancel it by that name.
        context.setLocalProperty(_GROUP, JOB_GROUP)
    try:
        yield
    finally:
        for name, value in before.items():
            context.setLocalProperty(name, value)  # None removes it


@contextmanager
def with_settings(session: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """The session with other settings as long as the block lasts; raises `SparkUnavailableError` for one it refuses."""
    before: dict[str, str | None] = {}
    try:
        for name, value in wanted.items():
            old = session.conf.get(name, None)
            _set(session, name, value)
            before[name] = old
        yield
    finally:
        for name, old in before.items():
            if old is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, old)


def _set(session: SparkSession, name: str, value: str) -> None:
    try:
        session.conf.set(name, value)
    except PySparkException as error:
        text = f"this Spark session is open already and cannot take {name}: {first_line(error)}"
        raise SparkUnavailableError(text) from error
