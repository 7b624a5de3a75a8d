"""The calls of docs/judge.md on a Delta table and on a Kafka topic give the same findings as the NDJSON history."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pyspark
import pytest
from model_tests.conformance.java_broker import (
    ENDS_WITH_US,
    JavaUnavailableError,
    free_port,
    listening,
    resolve_artifacts,
)
from model_tests.support.judge.faults import plant
from model_tests.support.judge.generate import Load, simulate, simulated_meta
from model_tests.support.judge.histories import without_time
from model_tests.support.judge.recording import write

import longpoll
from longpoll_judge.contract.result import Result

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]

KAFKA: Final = "org.apache.kafka:kafka_2.13:4.1.2"
CLUSTER: Final = "lp0AAAAAQAAAAAAAAAAAAA"
SETTINGS: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=CLIENTS://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=CLIENTS
controller.listener.names=CONTROLLER
log.dirs={home}/log
num.partitions=3
offsets.topic.replication.factor=1
"""
PAGE: Final = Path(__file__).parents[2] / "docs" / "judge.md"
AGAIN: Final = """
import json
found, counted = {"delta": told(of_delta.result), "kafka": told(of_kafka.result)}, lines.count()
some = spark.read.text("/tmp/history/part-*.ndjson").where("crc32(value) % 3 = 0")
some.write.format("kafka").options(**kafka).save()
assert lines.count() > counted
again = longpoll.judge(events.select("event.*")).result
stored = [spark.read.format("delta").load(f"/tmp/{name}").count() for name in ("findings", "counts")]
print(json.dumps(found | {"again": told(again), "stored": stored}))
"""


@contextmanager
def kafka(home: Path) -> Iterator[str]:
    try:
        class_path = resolve_artifacts(home, KAFKA)
    except JavaUnavailableError as error:
        pytest.skip(f"KAFKA NOT TRIED: {error}")
    port = free_port((1,))
    (home / "node.properties").write_text(SETTINGS.format(port=port, controller=port + 1, home=home))
    java = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", class_path]
    settings = str(home / "node.properties")
    subprocess.run([*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", settings], check=True, timeout=60)
    with listening([*ENDS_WITH_US, *java, "kafka.Kafka", settings], home, "kafka", port):
        yield f"127.0.0.1:{port}"


def of_page(directory: Path, broker: str) -> str:
    (program,) = re.findall(r"^```python\n(from pyspark.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    whole = f"from __future__ import annotations\n{program}\n{inspect.getsource(told)}\n{AGAIN}"
    return whole.replace("/tmp/", f"{directory}/").replace("127.0.0.1:9092", broker)  # noqa: S108


def told(result: Result) -> list[Any]:
    findings = [[one.clause, one.verdict, one.topic, one.queue, one.request, one.why] for one in result.findings]
    return [result.verdict, result.events, findings]


def test_tables_and_topics_are_judged_as_the_history(tmp_path: Path) -> None:
    load = Load(events=600, queues=2, timeout_ms=60, is_whole=True)
    write(tmp_path / "clean", simulate(load), simulated_meta(), events_per_part=200)
    plant(tmp_path / "clean", "next_wrong", tmp_path / "history")
    (tmp_path / "node").mkdir()
    (tmp_path / "spark-defaults.conf").write_text("spark.master local[2]\nspark.ui.enabled false\n")
    # `python3` is another interpreter, as in a virtual environment that is not activated.
    path = os.environ["PATH"].replace(str(Path(sys.executable).parent), "")
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"} | {
        "PATH": path, "SPARK_CONF_DIR": str(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }  # fmt: skip
    with kafka(tmp_path / "node") as broker:
        done = subprocess.run(
            [sys.executable, "-c", of_page(tmp_path, broker)],
            capture_output=True, text=True, timeout=500, check=False, cwd=tmp_path, env=environment,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3_000:]
    found = json.loads(done.stdout.splitlines()[-1])
    here = told(longpoll.judge(tmp_path / "history"))

    assert here[0] == "invalid"
    assert here[2]
    assert found["delta"] == found["kafka"] == found["again"] == here
    assert found["stored"][0] == len(here[2])
    assert found["stored"][1] > 10


def test_two_executors_of_this_machine_judge_alike(tmp_path: Path) -> None:
    """With `local-cluster[2,1,2048]` both executors run tasks, and the result equals that of a single process."""
    write(
        tmp_path / "clean", simulate(Load(events=600, queues=4, timeout_ms=60)), simulated_meta(), events_per_part=150
    )
    plant(tmp_path / "clean", "next_wrong", tmp_path / "history")
    home = tmp_path / "spark"  # Spark puts the executors' directories here.
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    words = ["judge", str(tmp_path / "history"), "--json", "--master", "local-cluster[2,1,2048]"]
    words += ["--conf", "spark.scheduler.minRegisteredResourcesRatio=1"]
    words += ["--conf", "spark.scheduler.maxRegisteredResourcesWaitingTime=300s"]
    done = subprocess.run(
        [sys.executable, "-m", "longpoll", *words],
        capture_output=True, text=True, timeout=500, check=False, env=os.environ | {"SPARK_HOME": str(home)},
    )  # fmt: skip
    logs = [log.read_text("utf-8") for log in home.glob("work/app-*/*/stderr")]

    assert done.returncode == 1, done.stderr
    there, here = msgspec.json.decode(done.stdout, type=Result), longpoll.judge(tmp_path / "history")
    assert without_time(there) == without_time(here)
    assert sum("Running task" in log for log in logs) == 2
