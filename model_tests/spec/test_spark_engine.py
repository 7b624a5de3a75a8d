"""The Spark engine finds the same states as the packed engine, resumes after an interrupt, and reports faults."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_tests.support.spec.cases import quick_if
from pyspark.sql import SparkSession

from longpoll_judge.run.spark.engine import SparkEngine
from longpoll_spec.bounds import Bounds, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.exploration import Exploration, Progress
from longpoll_spec.engines.manifest import Entry, entry_of, pinned
from longpoll_spec.engines.packed.compile import Source, source_of
from longpoll_spec.engines.packed.layout import layout_of
from longpoll_spec.engines.packed.words import distinct, key_of, mixed, unmixed, words_of
from longpoll_spec.engines.spark import partition
from longpoll_spec.engines.spark import search as spark
from longpoll_spec.engines.spark.checkpoint import STATE_FILE, Checkpoint
from longpoll_spec.engines.spark.partition import Partition, Visited, count, runs_in, write_cut
from longpoll_spec.errors import CheckpointError, SparkFailedError
from longpoll_spec.model import Model
from longpoll_spec.policy import preset
from longpoll_spec.specification import properties_of, specification_of


@pytest.fixture
def session(spark_engine: SparkEngine) -> SparkSession:
    return spark_engine.session


@pytest.fixture
def by_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "HERE_STATES_MAX", 0)


def _model_of(policy: str, bounds: str) -> Model:
    return specification_of(preset(policy), named(bounds, preset(policy)))


def _least() -> Model:
    return specification_of(preset("rocketmq-4.9"), Bounds("least", requests=1, messages=1))


def _same(first: Exploration, second: Exploration) -> bool:
    counts = [(each.distinct_states, each.depth, dict(each.fired), each.verdicts) for each in (first, second)]
    return counts[0] == counts[1]


@pytest.fixture(params=quick_if([True, False], bool), ids=lambda tight: "tight" if tight else "roomy")
def tight(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit how many states are expanded and sorted at once, so that there are several runs; or set no limit."""
    if request.param:
        monkeypatch.setattr(partition, "STRETCH_STATES", 30)
        monkeypatch.setattr(partition, "SORTED_STATES", 20)


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize("here_max", quick_if([1 << 30, 0], bool))
def test_spark_finds_the_packed_engines_numbers(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch, here_max: int
) -> None:
    monkeypatch.setattr(spark, "HERE_STATES_MAX", here_max)
    model = _least()

    assert _same(explore(model, engine="spark", session=session), explore(model))


def _of(found: Exploration) -> tuple[int, int]:
    return found.distinct_states, found.depth


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.long
@pytest.mark.parametrize(
    "entry",
    [each for each in pinned() if each.bounds in {"tiny", "small"} or (each.policy == "strict" and each.depth < 20)],
    ids=lambda each: f"{each.policy}-{each.bounds}",
)
def test_spark_finds_the_pinned_numbers(session: SparkSession, entry: Entry) -> None:
    model = _model_of(entry.policy, entry.bounds)

    assert entry_of(explore(model, engine="spark", session=session)) == entry


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_the_driver_expands_small_levels_and_jobs_large_ones(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark, "HERE_STATES_MAX", 8)
    model, jobs = _least(), []
    honest = spark._Search._by_shares

    def counted(self: spark._Search, do: Any, kind: Any, is_here: bool) -> Any:
        jobs.append(not is_here)
        return honest(self, do, kind, is_here)

    monkeypatch.setattr(spark._Search, "_by_shares", counted)
    found = explore(model, engine="spark", session=session, limit_states=30)

    assert _same(found, explore(model, limit_states=30))
    assert set(jobs) == {False, True}


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("forgets", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_search_resumes_from_its_checkpoint(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgets: bool
) -> None:
    """The search continues after a half-written level. If it forgets the first state, its count of states is wrong."""
    model, path = _model_of("strict", "tiny"), tmp_path / "part"
    explore(model, [], engine="spark", session=session, checkpoint=path, limit_states=100)
    depth = len(list(path.glob("level-*")))
    for name in (f"level-{depth}", "made"):
        (path / name).mkdir(exist_ok=True)
        (path / name / "share-0-0.npy").write_bytes(b"killed here")
    shutil.rmtree(path / "seen")
    if forgets:
        monkeypatch.setattr(partition, "runs_in", lambda at, *more: runs_in(at, *more) if at.name != "level-0" else [])
    rest = explore(model, [], engine="spark", session=session, checkpoint=path)

    assert rest.complete
    assert (rest.distinct_states == explore(model, []).distinct_states) == (not forgets)


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("limit_states", quick_if([100, None], lambda limit: limit is not None))
@pytest.mark.parametrize("here_max", quick_if([spark.HERE_STATES_MAX, 0], bool))
def test_an_interrupted_and_resumed_search_gives_the_same_numbers(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_states: int | None, here_max: int
) -> None:
    monkeypatch.setattr(spark, "HERE_STATES_MAX", here_max)
    model = _model_of("strict", "tiny")

    def interrupt(progress: Progress) -> None:
        if progress.depth == 3:
            signal.raise_signal(signal.SIGINT)

    part = explore(model, [], engine="spark", session=session, checkpoint=tmp_path / "part", report=interrupt)
    (tmp_path / "part" / "level-4").mkdir()
    (tmp_path / "part" / "level-4" / "share-0-0.npy").write_bytes(b"killed here")
    depths: list[int] = []
    judged = properties_of(model)
    with pytest.raises(CheckpointError, match="another model, bounds or properties"):
        explore(model, judged, engine="spark", session=session, checkpoint=tmp_path / "part")
    rest = explore(
        model,
        [],
        engine="spark",
        session=session,
        checkpoint=tmp_path / "part",
        limit_states=100,
        report=lambda now: depths.append(now.depth),
    )
    whole = explore(model, judged, engine="spark", session=session, limit_states=limit_states)

    assert not part.complete
    assert part.depth == 3
    assert depths[0] == 4
    assert rest.distinct_states == explore(model, [], limit_states=100).distinct_states
    assert _same(whole, explore(model, limit_states=limit_states))


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_checkpoint_that_cannot_be_resumed_is_refused(session: SparkSession, tmp_path: Path) -> None:
    """Another specification, a damaged or missing file and foreign files each get one line; no file is deleted."""
    model, other = _least(), specification_of(preset("strict"), Bounds("least", requests=1, messages=1))
    explore(model, [], engine="spark", session=session, checkpoint=tmp_path / "mine", limit_states=10)

    def again(law: Model, where: Path) -> Exploration:
        return explore(law, [], engine="spark", session=session, checkpoint=where)

    with pytest.raises(CheckpointError, match="a search of another model"):
        again(other, tmp_path / "mine")
    with pytest.raises(CheckpointError, match="has files but no search"):
        again(model, tmp_path)
    (run,) = (tmp_path / "mine" / "level-0").iterdir()
    whole = run.read_bytes()
    for damaged in (whole[:-1], b"", whole[:20]):
        run.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="level-0 is incomplete"):
            again(model, tmp_path / "mine")
    run.write_bytes(whole)
    (tmp_path / "mine" / "level-1").rename(tmp_path / "level-1")
    with pytest.raises(CheckpointError, match="level-1 is incomplete"):
        again(model, tmp_path / "mine")
    state = (tmp_path / "mine" / STATE_FILE).read_text()
    (tmp_path / "mine" / STATE_FILE).write_text(state.replace('"format_version":2', '"format_version":1'))
    with pytest.raises(CheckpointError, match="of another version of longpoll"):
        again(model, tmp_path / "mine")
    (tmp_path / "mine" / STATE_FILE).write_text("{")
    with pytest.raises(CheckpointError, match="is damaged"):
        again(model, tmp_path / "mine")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot use .*; fix this, or use another --checkpoint"):
        again(model, tmp_path / "file")
    assert (tmp_path / "mine" / "level-0").is_dir()


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.usefixtures("by_jobs")
def test_a_shard_without_an_answer_is_an_error(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark must answer for every shard of the current step; answers of an earlier step do not count."""
    honest, jobs = SparkSession.range, itertools.count()

    def loses(self: SparkSession, start: int, end: int, step: int, parts: int) -> Any:
        return honest(self, start, end - (next(jobs) > 0), step, parts)

    monkeypatch.setattr(SparkSession, "range", loses)

    with pytest.raises(SparkFailedError, match=r"^3 chunks have a result in .*/answers, but there are 4$"):
        explore(_least(), [], engine="spark", session=session, limit_states=20)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_second_search_in_one_directory_is_refused(session: SparkSession, tmp_path: Path) -> None:
    model, refused = _model_of("strict", "tiny"), []

    def again(progress: Progress) -> None:
        if progress.depth == 3:
            with pytest.raises(CheckpointError, match="is in use by another process") as told:
                explore(model, [], engine="spark", session=session, checkpoint=tmp_path)
            refused.append(told.value)

    found = explore(model, [], engine="spark", session=session, checkpoint=tmp_path, report=again)
    told = explore(model, [], engine="spark", session=session, checkpoint=tmp_path)

    assert len(refused) == 1
    assert _of(found) == _of(told) == _of(explore(model, []))


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_full_disk_of_a_spark_search_is_one_line(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the directory and says what to do. When the disk has room, the search resumes and is correct."""
    model, honest = _model_of("strict", "tiny"), np.save
    written = itertools.count()

    def full(file: Any, words: Any) -> None:
        if next(written) > 30:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        honest(file, words)

    with monkeypatch.context() as while_full:
        while_full.setattr(np, "save", full)
        with pytest.raises(CheckpointError, match=r"^cannot use .*: No space left on device; "):
            explore(model, [], engine="spark", session=session, checkpoint=tmp_path)
    found = explore(model, [], engine="spark", session=session, checkpoint=tmp_path)

    assert next(written) > 30
    assert _of(found) == _of(explore(model, []))


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.usefixtures("by_jobs")
def test_a_fault_of_spark_is_one_line(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = Source(("def expand(*_):", "    raise ValueError('planted in a worker')"), "int8", {})
    monkeypatch.setattr(spark, "source_of", lambda *_: planted)

    with pytest.raises(SparkFailedError, match="Spark failed: ") as told:
        explore(_least(), [], engine="spark", session=session)
    assert "\n" not in str(told.value)


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_worker_reports_its_findings(tmp_path: Path) -> None:
    model = _model_of("rocketmq-4.9", "tiny")
    layout, judged = layout_of(model), properties_of(model)
    source = source_of(model, layout, judged)
    task = Partition(tmp_path, 1, source, layout.words, len(model.actions), len(judged))
    kept = Checkpoint(tmp_path)
    kept.open("law", mixed(words_of([layout.pack(model.initial)], layout.words)), len(model.actions), 1)
    kept.empty(kept.made)
    told = task.expand(0, 0, [True] * len(judged))
    (made,) = runs_in(kept.made, 0)

    assert 0 < made.shape[1] <= sum(told.fired)
    assert (made[0, 1:] > made[0, :-1]).all()
    assert all(int(key, 16) == layout.pack(model.initial) for _, _, key in told.found)
    assert told.found


LEVELS = st.lists(st.lists(st.integers(1, (1 << 128) - 1), max_size=12), min_size=1, max_size=9)


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@settings(max_examples=15)
@given(LEVELS, st.integers(1, 3), st.integers(1, 8))
def test_merged_runs_have_every_state_once(levels: list[list[int]], shares: int, sorted_states: int) -> None:
    known: set[int] = set()
    with tempfile.TemporaryDirectory() as name:
        kept = Checkpoint(Path(name))
        for depth, keys in enumerate(levels):
            fresh = set(keys) - known
            known |= fresh
            write_cut(kept.empty(kept.level(depth)), distinct(mixed(words_of(fresh, 2))), shares)
            found: list[int] = []
            for number in range(shares):
                runs = Visited(kept.path, number, sorted_states).runs(depth)
                spans = list((kept.path / "seen" / str(number)).glob("[0-9]*"))
                assert len(spans) <= 1 + max(1, count(runs)).bit_length()
                assert all((run[0, 1:] >= run[0, :-1]).all() for run in runs)
                found += [key_of(unmixed(run.copy()), column) for run in runs for column in range(run.shape[1])]
                if depth % 3 == 1 and spans:
                    shutil.rmtree(spans[0])
            assert sorted(found) == sorted(known)
