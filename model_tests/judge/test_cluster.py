"""Where the judge runs: the caller's session, Spark Connect, spark-submit, and a cluster without our packages."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from attrs import evolve
from click.testing import CliRunner
from model_tests.judge.standalone import (
    SPARK,
    WAIT_S,
    Standalone,
    connect_server,
    standalone,
    worker_python,
)
from model_tests.judge.test_stories import MIXED, write_parts
from model_tests.support.broker.raw_client import PATIENCE_S
from model_tests.support.judge.generate import Load, simulate, simulated_meta
from model_tests.support.judge.histories import LIMITS, PAGE, certain, shown_on_page, without_time
from model_tests.support.judge.pops import META, World
from model_tests.support.judge.recording import write
from model_tests.support.judge.stories import LIMIT_MS, clauses_by_story, together
from model_tests.support.spec.cases import quick_if

import longpoll
from longpoll.cli import main
from longpoll_judge.contract.result import Result
from longpoll_judge.errors import SparkUnavailableError
from longpoll_judge.read.data_sources import DAMAGE
from longpoll_judge.read.growing_history import GrowingHistory
from longpoll_judge.read.source import find
from longpoll_judge.run.follow import Listing, is_begun
from longpoll_judge.run.local import LocalEngine
from longpoll_judge.run.pipeline import judge, judge_on
from longpoll_judge.run.spark import code_archive, frames
from longpoll_judge.run.spark.engine import SparkEngine
from longpoll_judge.run.spark.session import JOB_GROUP, REMOTE, with_settings
from longpoll_judge.run.spark.stream import Batch, StreamJudge, stream_judge
from longpoll_spec.bounds import named
from longpoll_spec.engines import explore
from longpoll_spec.errors import UserError
from longpoll_spec.history import META_FILE, Event
from longpoll_spec.policy import preset
from longpoll_spec.specification import specification_of

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.fixture(scope="module")
def faulted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("faulted") / "history"
    answers = 0

    def spoiled(event: Event) -> Event:
        nonlocal answers
        answers += event.event == "answer_sent"
        is_wrong = event.event == "answer_sent" and answers % 150 == 0
        return msgspec.structs.replace(event, offset_next=event.offset_next + 1) if is_wrong else event

    events = map(spoiled, simulate(Load(events=3_000, timeout_ms=60)))
    write(directory, events, simulated_meta(), events_per_part=700)
    return directory


def test_the_callers_session_keeps_its_settings(faulted: Path, spark_engine: SparkEngine) -> None:
    session = spark_engine.session
    session.conf.set("spark.sql.adaptive.enabled", "false")
    before = dict(session.conf.getAll)
    try:
        assert without_time(longpoll.judge([faulted], session=session)) == without_time(longpoll.judge(faulted))
        assert dict(session.conf.getAll) == before
        with pytest.raises(SparkUnavailableError, match=r"cannot take spark\.executor\.memory"):
            judge([faulted], session=session, conf={"spark.executor.memory": "1g"})
        assert dict(session.conf.getAll) == before
    finally:
        session.conf.set("spark.sql.adaptive.enabled", "true")
    assert session.range(3).count() == 3


def next_batch(judging: StreamJudge) -> Batch:
    deadline_s = time.monotonic() + PATIENCE_S
    while (batch := judging.look()) is None:
        assert time.monotonic() < deadline_s, "the stream returned nothing"
        threading.Event().wait(0.05)
    return batch


def test_a_restarted_stream_finds_the_same_as_a_batch(faulted: Path, tmp_path: Path, spark_engine: SparkEngine) -> None:
    growing, kept = tmp_path / "growing", tmp_path / "kept"
    growing.mkdir()
    shutil.copy(faulted / META_FILE, growing)
    parts = sorted(faulted.glob("part-*"))
    shutil.copy(parts[0], growing)
    growth, listing = GrowingHistory([growing]), Listing(LIMITS, "spark")
    with stream_judge(spark_engine, growth, LIMITS, kept) as judging:
        first = next_batch(judging)
        results = [listing.result(first.so_far, growth.look())]
        query: Any = judging._query
        plan = query._jsq.explainInternal(False)
        # The query looks for new files only after it has reported its batch, so it sees all the files written here at
        # once.
        for part in parts[1:]:
            shutil.copy(part, growing)
        first.is_told.set()
        lost = next_batch(judging)
    assert is_begun(kept)
    with stream_judge(spark_engine, growth, LIMITS, kept) as judging:
        again = next_batch(judging)
        results.append(listing.result(again.so_far, growth.look()))
        again.is_told.set()
    whole = judge([faulted], engine="local")

    told = {name for result in results for name in certain(result)}
    assert told == set(certain(whole))
    assert len(told) > 2
    assert (results[0].events, results[1].events) == (700, whole.events)
    assert list(first.ends) == [str(growing / parts[0].name)]
    assert again.ends == lost.ends == {str(growing / part.name): part.stat().st_size for part in parts[1:]}
    assert plan.count("Exchange") == plan.count("Exchange hashpartitioning(queue_group") == 1
    for step in ("MicroBatchScan", "FlatMapGroupsInPandasWithState", "state info"):
        assert step in plan


def wait_for_ui(session: Any) -> None:
    """Wait until Spark has reported all events to its UI, which another thread does."""
    session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(int(PATIENCE_S * 1_000))


def plans_of(session: Any) -> list[str]:
    wait_for_ui(session)
    runs = session._jsparkSession.sharedState().statusStore().executionsList()
    return [runs.apply(place).physicalPlanDescription() for place in range(runs.size())]


def jobs_of(session: Any) -> dict[int, str]:
    wait_for_ui(session)
    jobs = session.sparkContext._jsc.sc().statusStore().jobsList(None)
    every = [jobs.apply(place) for place in range(jobs.size())]
    return {
        job.jobId(): job.description().get()
        if job.description().isDefined() and JOB_GROUP in str(job.jobTags())
        else ""
        for job in every
    }


def test_the_plan_shows_what_each_stage_reads_and_exchanges(tmp_path: Path, spark_engine: SparkEngine) -> None:
    """Spark's UI names each job.

    Each query has one exchange and caches no scan, because each request belongs to one queue.
    """
    load = Load(events=1_500, queues=2, timeout_ms=60, is_whole=True)
    write(tmp_path / "history", simulate(load), simulated_meta(), events_per_part=500)
    here = longpoll.judge(tmp_path / "history")
    session: Any = spark_engine.session
    before = jobs_of(session)

    assert here.shares["sends"].judged > 100
    assert without_time(longpoll.judge([tmp_path / "history"], session=session)) == without_time(here)
    told = {re.sub(r"\d+", "N", text) for number, text in jobs_of(session).items() if number not in before}
    assert told == {"survey N splits", "judge N buckets"}
    assert session.sparkContext.getLocalProperty("spark.job.description") is None

    for plan, source in zip(plans_of(session)[-2:], ("longpoll-splits", "longpoll-events"), strict=True):
        # Spark's UI shows a plan twice: as it was planned and as it was changed at run time.
        assert Counter(re.findall(r"(\w+)partitioning\((\w+)#", plan)) == {("hash", "place"): 2}, plan
        assert [name for name in ("RoundRobinPartitioning", "SinglePartition", "InMemory") if name in plan] == []
        steps = "AdaptiveSparkPlan", "MapInArrow", f"BatchScan {source}"
        assert [name for name in steps if name not in plan] == [], plan


@pytest.mark.parametrize("name", ["on_spark.py", "plan.py"])
def test_programs_of_the_page_print_its_output(
    name: str, spark_engine: SparkEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output equals the page except for column numbers and lines of the plan that the page leaves out."""
    program, shown = shown_on_page(name)
    whole = program.replace('"model_tests/', f'"{PAGE.parents[1]}/model_tests/').replace('"/tmp/', f'"{tmp_path}/')
    exec(whole, {"session": spark_engine.session})  # noqa: S102 - it is the page's
    said = re.sub(r"#\d+L?", "", capsys.readouterr().out)
    lines = iter(said.splitlines())

    for text in filter(None, shown.splitlines()):
        assert any(line.startswith(text.removesuffix("...")) for line in lines), text
    assert name == "plan.py" or said.rstrip() == shown.rstrip()
    assert name == "on_spark.py" or len(re.findall(r"^Arguments: \w+partitioning", said, re.MULTILINE)) == 1


def with_faults(events: list[Event]) -> list[Event]:
    first, second = [at for at, one in enumerate(events) if one.event == "append"][20:22]
    offsets = events[first].queue_offset, events[second].queue_offset
    for at, offset in zip((second, first), offsets, strict=True):
        events[at] = msgspec.structs.replace(events[at], queue_offset=offset)
    answer, end = next(one for one in events if one.event == "answer_sent"), events.pop()
    again = msgspec.structs.replace(answer, after_ns=end.after_ns, before_ns=end.before_ns, sequence=end.sequence)
    return [*events, again, msgspec.structs.replace(end, sequence=end.sequence + 1)]


@pytest.mark.parametrize(("has_pops", "exchanges"), [(False, 6), (True, 4)])
def test_a_hot_queue_and_many_buckets_change_nothing(
    *, has_pops: bool, exchanges: int, faulted: Path, tmp_path: Path, spark_engine: SparkEngine
) -> None:
    """Spark's verdict and findings equal those of a single process, even if a request needs events of two buckets.

    A hot queue is cut into parts unless the history has pops; cutting takes one more exchange.
    """
    for seed, queues, events in ((1, 1, 4_000), (2, 3, 800)):
        load = Load(events=events, queues=queues, timeout_ms=60, is_whole=True, seed=seed)
        named_so = [msgspec.structs.replace(one, topic=f"T{seed}" if one.topic else "") for one in simulate(load)]
        write(tmp_path / str(seed), with_faults(named_so), simulated_meta(), events_per_part=150)
    write(tmp_path / "pops", World(seed=2, fault="wake_lost").run(), META, events_per_part=150)
    names = ("1", "2", "pops") if has_pops else ("1", "2")
    histories = find([faulted, *(tmp_path / name for name in names)])
    how: dict[str, Any] = {"wake_ms": 100, "late_ms": 50, "say": lambda _text: None}
    here, there = (
        judge_on(engine, histories, **how) for engine in (LocalEngine(), evolve(spark_engine, window_events=300))
    )
    assert len(here.findings) > 3
    assert {"answered_once", "offsets_in_order"} <= {finding.property for finding in here.findings}
    assert ("pop_is_kept" in {finding.property for finding in here.findings}) == has_pops
    assert min(here.shares["sends"].judged, here.shares["commits"].judged) > 10
    assert without_time(there) == without_time(here)
    (judged,) = [plan for plan in plans_of(spark_engine.session)[-1:] if "find_visitors" in plan or "Union" in plan]
    assert Counter(re.findall(r"(\w+)partitioning\((\w+)#", judged)) == {("hash", "place"): exchanges}, judged


def test_spark_reports_the_clauses_of_stories(spark_engine: SparkEngine, tmp_path: Path) -> None:
    several = MIXED[::23]
    meta, events = together(several)
    history = find([write_parts(tmp_path, meta, events, [100, 200])])
    result = judge_on(spark_engine, history, wake_ms=LIMIT_MS, late_ms=LIMIT_MS, say=lambda _stage: None)

    assert clauses_by_story(result, len(several)) == [sorted(one.expected) for one in several]


REQUIRED = "'hold' AS event", "1L AS after_ns", "2L AS before_ns", "'s' AS source", "0L AS sequence"
NEEDED = "CAST(NULL AS array<bigint>) AS offsets", "CAST(NULL AS string) AS tag"


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ((), "the DataFrame has no column 'event'"),
        (REQUIRED, "the DataFrame has no column 'offsets'"),
        (("timestamp'2026-11-27' AS after_ns", *REQUIRED[:1], *REQUIRED[2:]), "'after_ns' .* is timestamp: cast it to"),
        ((*REQUIRED, "'q0' AS queue"), "the column 'queue' of the DataFrame is string: cast it to bigint"),
        ((*REQUIRED, "array('1') AS offsets"), "the column 'offsets' .* is array<string>: cast it to array<bigint>"),
        ((*REQUIRED, "1 AS Queue", "1 AS queue"), "the DataFrame has 2 columns 'queue': drop or rename all but one"),
    ],
)
def test_a_frame_without_event_columns_is_refused(
    columns: tuple[str, ...], text: str, spark_engine: SparkEngine
) -> None:
    with pytest.raises(UserError, match=text):
        longpoll.judge(spark_engine.session.range(1).selectExpr("id", *columns))


def test_an_unsupported_frame_or_session_is_refused(faulted: Path, spark_engine: SparkEngine) -> None:
    session = spark_engine.session
    frame = session.range(1)
    judge_any: Any = longpoll.judge
    stopped: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None))
    cluster: Any = SimpleNamespace(conf={}, sparkContext=SimpleNamespace(master="yarn"))
    failing = session.range(1).selectExpr("CAST(raise_error('no broker') AS string) AS event", *REQUIRED[1:], *NEEDED)
    calls: dict[str, Callable[[], object]] = {
        "judge one DataFrame at a time": lambda: judge_any(frame, frame),
        "a streaming DataFrame has no end": lambda: longpoll.judge(session.readStream.format("rate").load()),
        "or a Spark DataFrame, not a types SimpleNamespace": lambda: judge_any(stopped),
        r"leave out local\[1\]": lambda: longpoll.judge(faulted, session=session, master="local[1]"),
        "this Spark session is stopped": lambda: longpoll.judge(faulted, session=stopped),
        f"on a cluster, set {frames.DIRECTORY} to a directory": frames._shared(cluster, {}).__enter__,
        "Spark could not do its work: .*no broker": lambda: longpoll.judge(failing).verdict,
    }
    for text, call in calls.items():
        with pytest.raises(UserError, match=text):
            call()


def test_no_damage_of_a_frame_is_lost(
    tmp_path: Path, spark_engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = spark_engine.session
    columns = (f"IF(id < 3, '{DAMAGE}', NULL) AS event", *REQUIRED[1:4], "id AS sequence", *NEEDED)
    frame = session.range(6).selectExpr(*columns)
    with with_settings(session, {frames.DIRECTORY: str(tmp_path / "shared")}):
        with frames.history_of(frame, {}) as history:
            reasons = [damage.reason for damage in history.damages]
        assert reasons == ["damage"] * 3 + ["rows without event, after_ns, before_ns, source or sequence"]
        assert list((tmp_path / "shared").iterdir()) == []
        monkeypatch.setattr(frames, "DAMAGES_MAX", 2)
        with pytest.raises(UserError, match="over 2 rows of damage; judge its history's directory"):
            frames._damages(frame)


IMPORTED = "import sys; sys.path.insert(0, sys.argv[1]); import longpoll_judge.run.spark.engine as e; print(e.__file__)"


@pytest.mark.parametrize("missing", quick_if(["", *code_archive.PACKAGES], lambda missing: not missing))
def test_the_archive_has_the_packages_a_worker_imports(missing: str, tmp_path: Path) -> None:
    """A Python with only PySpark finds its imports in the archive, and fails if one package is removed."""
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(io.BytesIO(code_archive.archive())) as packed:
        packed.extractall(unpacked)
    if missing:
        shutil.rmtree(unpacked / missing)
    python = worker_python(tmp_path / "worker")
    done = subprocess.run(
        [str(python), "-c", IMPORTED, str(unpacked)], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode == 0) == (not missing), done.stderr
    assert missing or done.stdout.startswith(str(unpacked))


def test_the_archive_is_the_same_each_time() -> None:
    """Workers recognise the archive by its bytes, so it must be the same each time."""
    first = code_archive.archive()
    code_archive.archive.cache_clear()

    assert code_archive.archive() == first


def judged(history: Path, *words: str) -> subprocess.Popen[str]:
    """Run `longpoll judge` in a separate process, because a process has only one Spark session."""
    return subprocess.Popen(
        [sys.executable, "-m", "longpoll", "judge", str(history), "--json", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def on(found: Standalone) -> list[str]:
    settings = [word for name, value in found.conf().items() for word in ("--conf", f"{name}={value}")]
    return ["--master", found.master, *settings]


def checked(checkpoint: Path, *words: str) -> subprocess.Popen[str]:
    law = ["--policy", "strict", "--requests", "3", "--messages", "3", "--tags", "2", "--property", "no_lost_wakeup"]
    return subprocess.Popen(
        [sys.executable, "-m", "longpoll", "check", *law, "--engine", "spark", "--checkpoint", str(checkpoint),
         "--json", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def packed() -> dict[str, Any]:
    found = explore(
        specification_of(preset("strict"), named("small", preset("strict"), requests=3, messages=3, tags=2)), []
    )
    return {"distinct_states": found.distinct_states, "transitions": found.transitions, "depth": found.depth}


@pytest.mark.long
def test_check_on_a_cluster_without_our_packages(packed: dict[str, Any], tmp_path: Path) -> None:
    """One of two workers is killed during the check, and the counts still equal those of the packed engine."""
    with standalone(tmp_path, 2) as found:
        disturbed = checked(tmp_path / "search", *on(found))
        found.kill_worker_at_work(seen=0)
        told, complained = disturbed.communicate(timeout=WAIT_S)

    assert disturbed.returncode == 0, complained
    assert {name: json.loads(told)[name] for name in packed} == packed


@pytest.mark.long
def test_check_by_spark_connect(packed: dict[str, Any], tmp_path: Path) -> None:
    with connect_server(tmp_path) as url:
        told, complained = (whole := checked(tmp_path / "search", "--master", url)).communicate(timeout=WAIT_S)
        # This command needs its own process, because the Spark session of this process would be an error first.
        asked = [sys.executable, "-m", "longpoll", "check", "--engine", "spark", "--bounds", "tiny", "--master", url]
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=WAIT_S)

    assert whole.returncode == 0, complained
    assert {name: json.loads(told)[name] for name in packed} == packed
    assert (done.returncode, "a cluster needs --checkpoint" in done.stderr) == (2, True), done.stderr


@pytest.mark.long
def test_a_worker_without_pyarrow_is_reported_in_one_line(faulted: Path, tmp_path: Path) -> None:
    with standalone(tmp_path, 1) as found:
        (tmp_path / "worker" / "packages" / "pyarrow").unlink()
        _told, complained = (lacking := judged(faulted, *on(found))).communicate(timeout=WAIT_S)

    assert lacking.returncode == 2
    text = " ".join(complained.split())
    assert "Spark could not do its work: ModuleNotFoundError: No module named 'pyarrow'" in text


@pytest.mark.long
def test_spark_connect(faulted: Path, tmp_path: Path) -> None:
    here = without_time(judge([faulted], engine="local"))
    asking = (
        "import json, sys, msgspec\n"
        "from longpoll import judge\n"
        "from longpoll_judge.run.spark.frames import EVENT_DDL\n"
        "from pyspark.sql import SparkSession\n"
        "paths, how, url, shared = [sys.argv[1]], *sys.argv[2:]\n"
        "given = {'environment': {}, 'master': {'master': url}}\n"
        "more = given[how] if how in given else {'session': SparkSession.builder.remote(url).create()}\n"
        "if how == 'frame':\n"
        "    paths = [more.pop('session').read.schema(EVENT_DDL).json(f'{paths[0]}/part-*.ndjson')]\n"
        "    more['conf'] = {'spark.longpoll.directory': shared}\n"
        "found = judge(*paths, engine='spark', **more) if how != 'frame' else judge(*paths, **more).result\n"
        "assert how != 'session' or more['session'].range(3).count() == 3\n"
        "print(msgspec.json.encode(found).decode())\n"
    )
    with connect_server(tmp_path) as url:
        for how in ("environment", "master", "session", "frame"):
            environment = {name: value for name, value in os.environ.items() if name != REMOTE}
            done = subprocess.run(
                [sys.executable, "-c", asking, str(faulted), how, url, str(tmp_path / "shared")],
                capture_output=True, text=True, timeout=300, check=False,
                env=environment | ({REMOTE: url} if how == "environment" else {}),
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            there = without_time(msgspec.json.decode(done.stdout, type=Result))
            if how == "frame":
                assert [(one.clause, one.why) for one in there.findings] == [
                    (one.clause, one.why) for one in here.findings
                ]
                assert (there.verdict, there.events, there.shares) == (here.verdict, here.events, here.shares)
                assert list((tmp_path / "shared").iterdir()) == []
            else:
                assert there == here, how


@pytest.mark.long
def test_spark_submit(faulted: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("from longpoll.cli import main\nmain()\n")
    settings = ["spark.ui.enabled=false", "spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1"]
    words = [word for setting in settings for word in ("--conf", setting)]
    done = subprocess.run(
        [str(SPARK / "bin" / "spark-submit"), "--master", "local[2]", *words, str(program),
         "judge", str(faulted), "--json"],
        capture_output=True, text=True, timeout=300, check=False, env=os.environ | {"PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip

    # spark-submit writes the output and the errors of the program to its own output.
    assert done.returncode == 1, done.stdout + done.stderr
    assert without_time(msgspec.json.decode(done.stdout, type=Result)) == without_time(judge([faulted], engine="local"))


def test_invalid_spark_settings_are_refused(faulted: Path) -> None:
    for words, text in (
        (["--conf", "executor.memory"], "write spark.NAME=VALUE"),
        (["--conf", "memory=1"], "write spark.NAME=VALUE"),
        (["--conf", "spark.a=1", "--engine", "local"], "--engine local does not run on Spark"),
        (["--master", "local[1]", "--engine", "local"], "leave out --master and --conf"),
    ):
        done = CliRunner().invoke(main, ["judge", str(faulted), *words])
        assert done.exit_code == 2
        assert text in " ".join(done.output.split())


@pytest.mark.long
def test_an_unreachable_server_is_reported_in_one_line(faulted: Path) -> None:
    """The error names the server's address without its token."""
    _told, complained = (alone := judged(faulted, "--master", "sc://127.0.0.1:1/;token=abc")).communicate(
        timeout=WAIT_S
    )
    text = " ".join(complained.split())

    assert alone.returncode == 2
    assert "no Spark Connect server answers at sc://127.0.0.1:1: " in text
    assert "abc" not in text
