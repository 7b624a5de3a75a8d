"""A Spark session of the judge's own: quiet, gone with its block, and on loopback unless its master is elsewhere.

Its files lie in a temporary directory that goes with it, and its chatter in a log there. Leaves out sessions of others
(`cluster`) and what runs on it (`engine`).
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from attrs import define, field
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from longpoll_judge.errors import SparkUnavailableError
from longpoll_judge.run.spark.java import find_java_home

DEFAULT_MASTER: Final = "local[*]"
LOG_FILE: Final = "spark.log"
_FAULT_CHARACTERS_MAX: Final = 300
_STOP_SECONDS: Final = 20


PYTHON: Final = "spark.pyspark.python"
"""The setting that names the workers' Python; PySpark itself looks at an environment variable."""
OF_QUERIES: Final = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    # Below this, Spark adds up the size of a batch after each row, which takes the square of its rows for lists.
    "spark.sql.execution.arrow.maxBytesPerBatch": str((1 << 31) - 1),
}
"""The settings that the engine's jobs need, also in the caller's session."""


def is_local(master: str) -> bool:
    """Whether the master is the driver's own process."""
    return master.startswith("local") and not master.startswith("local-cluster")


def _settings(directory: Path, master: str, given: Mapping[str, str]) -> SparkConf:
    """The settings of a new session: `given` first, then the machine's own defaults.

    The Java process reads those from `conf/spark-defaults.conf` as it starts.
    """
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName("longpoll judge")
    if is_local(master):
        conf.set("spark.driver.bindAddress", "127.0.0.1").set("spark.driver.host", "127.0.0.1")
        conf.set("spark.local.dir", str(directory / "local"))
    own = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Duser.timezone=UTC -Dderby.system.home={directory}",
        "spark.python.worker.reuse": "true",
        # A busy host starts Python late; Spark sees a worker that ends by its exit.
        "spark.python.authenticate.socketTimeout": "600s",
    }
    return conf.setAll(list((own | OF_QUERIES | dict(given)).items()))


@contextmanager
def open_session(master: str | None = None, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session that ends with the block, and its files with it; raises `SparkUnavailableError`.

    Args:
        master: Where it runs; all cores of this machine unless it is said.
        conf: Further settings, by Spark's names.

    Ctrl-C ends the Java process at once: asked politely it would first finish the job.
    """
    directory = Path(tempfile.mkdtemp(prefix="longpoll-spark-"))
    (directory / "local").mkdir()
    master = master or DEFAULT_MASTER
    settings = _settings(directory, master, conf or {})
    environment = _environment(directory, settings.get(PYTHON), alone=is_local(master))
    try:
        with _bridge_kept_quiet(), environment, (directory / LOG_FILE).open("wb") as log:
            gateway = _launch(settings, log, directory)
            try:
                session = _connect(gateway, settings, directory)
                yield session
                session.stop()
                gateway.shutdown()
            finally:
                _end(gateway.proc)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _environment(directory: Path, python: str | None, *, alone: bool) -> Iterator[None]:
    """The variables that Spark's start looks at, put back afterwards.

    Args:
        directory: Where a wrapper of Java may be written.
        python: The command of the workers' Python, if the settings name one.
        alone: The workers are on this machine, with this Python and loopback; other hosts have their own.
    """
    values: dict[str, str | None] = {
        "JAVA_HOME": str(find_java_home(directory / "java", os.environ)),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # A master is named, so it is no session of Spark Connect that is wanted.
        "SPARK_REMOTE": None,
        "SPARK_CONNECT_MODE_ENABLED": None,
    }
    if alone:
        values |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    if python is not None:
        values["PYSPARK_PYTHON"] = python
    old = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(old)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _launch(conf: SparkConf, log: Any, directory: Path) -> Any:
    try:
        launch: Any = launch_gateway
        return launch(conf, {"stdout": log, "stderr": subprocess.STDOUT, "cwd": str(directory)})
    except (PySparkException, OSError) as error:
        raise SparkUnavailableError(f"Spark does not start: {_first_fault(directory) or error}") from error


def _connect(gateway: Any, conf: SparkConf, directory: Path) -> SparkSession:
    try:
        with unclosed_sockets_ignored():
            return SparkSession(_open_context(gateway, conf))
    except (PySparkException, Py4JError) as error:
        raise SparkUnavailableError(f"Spark does not start: {_first_fault(directory) or error}") from error


def _open_context(gateway: Any, conf: SparkConf) -> SparkContext:
    """The context, with the process's own handler of Ctrl-C left in place."""
    on_interrupt = signal.getsignal(signal.SIGINT)
    try:
        context = SparkContext(conf=conf, gateway=gateway)
        if not is_local(context.master or DEFAULT_MASTER):
            # What `spark-defaults.conf` says: PySpark looks at the environment alone.
            context.pythonExec = context.getConf().get(PYTHON, context.pythonExec)
        return context
    finally:
        if signal.getsignal(signal.SIGINT) is not on_interrupt:
            signal.signal(signal.SIGINT, on_interrupt)


@define(eq=False)
class _Ignored:
    """A warnings filter that stays until its last user leaves.

    Filters belong to the whole process, and a stream's batches come on separate threads. Restoring on the first exit
    would remove the filter that another thread needs.
    """

    _lock: threading.Lock = field(factory=threading.Lock)
    _within: int = 0
    _stack: ExitStack = field(factory=ExitStack)

    def enter(self) -> None:
        """Ignore from now on."""
        with self._lock:
            if not self._within:
                self._stack.enter_context(warnings.catch_warnings())
                warnings.filterwarnings("ignore", "unclosed <socket", ResourceWarning)
            self._within += 1

    def leave(self) -> None:
        """Ignore no longer, unless another still does."""
        with self._lock:
            self._within -= 1
            if not self._within:
                self._stack.close()


_ignored: Final = _Ignored()


@contextmanager
def unclosed_sockets_ignored() -> Iterator[None]:
    """PySpark leaves the sockets over which results come to be closed with their last reference."""
    _ignored.enter()
    try:
        yield
    finally:
        _ignored.leave()


def _first_fault(directory: Path) -> str:
    """The first line of Spark's log that names a fault."""
    for line in (directory / LOG_FILE).read_text(errors="replace").splitlines():
        if "Exception" in line or "Error" in line:
            return line.strip()[:_FAULT_CHARACTERS_MAX]
    return ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the Java process and forget it. It also ends when its standard input closes, unless it is busy."""
    if sys.exc_info()[0] is not None:
        _stop_accumulators(SparkContext._active_spark_context)  # noqa: SLF001 - it has no public name
        process.kill()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - else the next session would talk to an ended process
    SparkContext._active_spark_context = None  # noqa: SLF001 - the same
    assert process.stdin is not None, "PySpark opens it"
    process.stdin.close()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _stop_accumulators(context: Any) -> None:
    """Stop the thread that would print a traceback when the Java process is gone."""
    if context is not None:
        context._accumulatorServer.shutdown()  # noqa: SLF001 - `SparkContext.stop` does so


_BRIDGE_LOGGERS: Final = (None, "py4j.clientserver", "py4j.java_gateway")


class _BridgeFilter(logging.Filter):
    """Keeps what py4j logs about a broken bridge from the user: its errors are raised as well."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record comes from elsewhere."""
        return "py4j" not in Path(record.pathname).parts


@contextmanager
def _bridge_kept_quiet() -> Iterator[None]:
    """Silence py4j, which logs through the root logger and two others; each needs its own filter."""
    bridge = _BridgeFilter()
    loggers = [logging.getLogger(name) for name in _BRIDGE_LOGGERS]
    for logger in loggers:
        logger.addFilter(bridge)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(bridge)
