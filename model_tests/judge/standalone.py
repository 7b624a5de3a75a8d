"""A Spark cluster on this machine whose workers lack our packages. All its processes end with the `with` block."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pyspark
from attrs import define, field

from longpoll_judge.run.spark.session import find_java_home

SPARK: Final = Path(pyspark.__file__).parent
OF_A_WORKER: Final = (
    "pyspark",
    "py4j",
    "pyarrow",
    "numpy",
    "numpy.libs",
    "pandas",
    "dateutil",
    "pytz",
    "six.py",
    "tzdata",
)
"""The packages on a worker of any PySpark cluster with Arrow."""
DEPLOY: Final = "org.apache.spark.deploy"
WAIT_S: Final = 300


def worker_python(directory: Path) -> Path:
    site = SPARK.parent
    packages = directory / "packages"
    packages.mkdir(parents=True)
    for name in OF_A_WORKER:
        if (site / name).exists():
            (packages / name).symlink_to(site / name)
    python = directory / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return python


@define
class Standalone:
    """A Spark cluster. Invariant: `processes` has the started processes that were not killed, the master first."""

    directory: Path
    python: Path
    host: str
    master: str = ""
    processes: list[subprocess.Popen[bytes]] = field(factory=list)

    def conf(self) -> dict[str, str]:
        return {
            "spark.driver.host": self.host,
            "spark.driver.bindAddress": self.host,
            "spark.pyspark.python": str(self.python),
            "spark.executor.memory": "512m",
            "spark.task.maxFailures": "8",
        }

    def start(self, kind: str, words: Sequence[str], said: str) -> str:
        """Start a command of Spark's, wait until its log matches `said`, and return the pattern's group."""
        log = self.directory / f"{kind}-{len(self.processes)}.log"
        environment = os.environ | {
            "JAVA_HOME": str(find_java_home(self.directory / f"java-{len(self.processes)}", os.environ)),
            "SPARK_HOME": str(SPARK),
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_MEMORY": "600m",
            "PYSPARK_PYTHON": str(self.python),
            "SPARK_WORKER_DIR": str(self.directory / f"work-{len(self.processes)}"),
            "SPARK_LOCAL_DIRS": str(self.directory / "local"),
        }
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [str(SPARK / "bin" / words[0]), *words[1:]],
                stdout=sink, stderr=subprocess.STDOUT, env=environment, cwd=self.directory, start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        return until_said(log, said, process)

    def end(self) -> None:
        while self.processes:
            _kill(self.processes.pop())

    def kill_worker_at_work(self, seen: int) -> None:
        """Kill the last worker and its executors as soon as one of them runs a task of application number `seen`."""
        deadline_s = time.monotonic() + WAIT_S
        worker = self.directory / f"work-{len(self.processes) - 1}"
        while time.monotonic() < deadline_s:
            logs = sorted(worker.glob("app-*"))[seen:]
            if any("Running task" in log.read_text(errors="replace") for app in logs for log in app.glob("*/stderr")):
                _kill(self.processes.pop())
                return
            with suppress(subprocess.TimeoutExpired):
                self.processes[-1].wait(0.05)
        raise AssertionError("the worker is given no task")


def until_said(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> str:
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found:
            return found.group(1)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
            break
    raise AssertionError(f"{pattern} is not said: {log.read_text(errors='replace')[-2_000:]}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children; executors run in the session of their worker."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(WAIT_S)


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    server = Standalone(directory, worker_python(directory / "worker"), "127.0.0.1")
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    words = ["spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    words += ["--master", "local[2]"]
    words += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    try:
        port = server.start("connect", [*words, "spark-internal"], r"Spark Connect server started at: \S*:(\d+)")
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.end()


@contextmanager
def standalone(directory: Path, workers: int) -> Iterator[Standalone]:
    cluster = Standalone(directory, worker_python(directory / "worker"), "127.0.0.1")
    place = ["--host", "127.0.0.1", "--webui-port", "0"]
    try:
        words = ["spark-class", f"{DEPLOY}.master.Master", *place, "--port", "0"]
        cluster.master = cluster.start("master", words, r"Starting Spark master at (spark://\S+)")
        words = ["spark-class", f"{DEPLOY}.worker.Worker", *place, "--cores", "1", "--memory", "600m", cluster.master]
        for _number in range(workers):
            cluster.start("worker", words, r"(Successfully registered) with master")
        yield cluster
    finally:
        cluster.end()
