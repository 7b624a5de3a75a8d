"""A Spark session of the judge's own: quiet, on loopback, gone with its block.

Its files lie in a temporary directory that goes with it, and its chatter in a log there. Leaves out what runs on it
(`spark`).
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

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


def _settings(directory: Path, master: str) -> SparkConf:
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName("longpoll judge")
    if master.startswith("local"):
        conf.set("spark.driver.bindAddress", "127.0.0.1").set("spark.driver.host", "127.0.0.1")
    return conf.setAll(
        [
            ("spark.ui.enabled", "false"),
            ("spark.ui.showConsoleProgress", "false"),
            ("spark.sql.session.timeZone", "UTC"),
            ("spark.local.dir", str(directory / "local")),
            ("spark.sql.warehouse.dir", str(directory / "warehouse")),
            ("spark.driver.extraJavaOptions", f"-Duser.timezone=UTC -Dderby.system.home={directory}"),
            # a record is a piece of some MB: more of them at once would not fit the buffers
            ("spark.sql.execution.arrow.maxRecordsPerBatch", "32"),
            ("spark.sql.inMemoryColumnarStorage.batchSize", "16"),
            ("spark.sql.inMemoryColumnarStorage.compressed", "false"),
            ("spark.sql.adaptive.enabled", "false"),
            ("spark.python.worker.reuse", "true"),
        ]
    )


@contextmanager
def open_session(master: str | None = None) -> Iterator[SparkSession]:
    """A session that ends with the block, and its files with it; raises `SparkUnavailableError`.

    Ctrl-C ends the Java process at once: asked politely it would first finish the job.
    """
    directory = Path(tempfile.mkdtemp(prefix="longpoll-spark-"))
    (directory / "local").mkdir()
    conf = _settings(directory, master or DEFAULT_MASTER)
    try:
        with _bridge_kept_quiet(), _environment(directory), (directory / LOG_FILE).open("wb") as log:
            gateway = _launch(conf, log, directory)
            try:
                session = _connect(gateway, conf, directory)
                yield session
                session.stop()
                gateway.shutdown()
            finally:
                _end(gateway.proc)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _environment(directory: Path) -> Iterator[None]:
    """The variables that Spark's start looks at, put back afterwards."""
    values = {
        "JAVA_HOME": str(find_java_home(directory / "java", os.environ)),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    old = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in old.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


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
        return SparkContext(conf=conf, gateway=gateway)
    finally:
        if signal.getsignal(signal.SIGINT) is not on_interrupt:
            signal.signal(signal.SIGINT, on_interrupt)


@contextmanager
def unclosed_sockets_ignored() -> Iterator[None]:
    """PySpark leaves the sockets over which results come to be closed with their last reference."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "unclosed <socket", ResourceWarning)
        yield


def _first_fault(directory: Path) -> str:
    """The first line of Spark's log that names a fault."""
    for line in (directory / LOG_FILE).read_text(errors="replace").splitlines():
        if "Exception" in line or "Error" in line:
            return line.strip()[:_FAULT_CHARACTERS_MAX]
    return ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the Java process and forget it; it goes by itself when its standard input ends, unless it is busy."""
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
    """py4j logs by the root logger and by two of its own; a filter hears only its own logger, so it stands at each."""
    bridge = _BridgeFilter()
    loggers = [logging.getLogger(name) for name in _BRIDGE_LOGGERS]
    for logger in loggers:
        logger.addFilter(bridge)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(bridge)
