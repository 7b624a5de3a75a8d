"""The Spark engine: the packed engine's numbers and tokens, from any number of tasks, also after a kill."""

from __future__ import annotations

import signal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from longpoll_judge.run.spark.engine import SparkEngine
from longpoll_spec.bounds import Bounds, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.exploration import Exploration, Progress
from longpoll_spec.engines.manifest import Entry, entry_of, pinned
from longpoll_spec.engines.packed.compile import source_of
from longpoll_spec.engines.packed.layout import layout_of
from longpoll_spec.engines.packed.source import Source
from longpoll_spec.engines.packed.words import words_of
from longpoll_spec.engines.spark import here
from longpoll_spec.engines.spark import search as spark
from longpoll_spec.engines.spark.checkpoint import STATE_FILE, told_in
from longpoll_spec.engines.spark.expand import Expander, table_of, words_in
from longpoll_spec.errors import CheckpointError, SparkFailedError
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.model import Model
from longpoll_spec.policy import preset
from longpoll_spec.testing.cases import quick_if

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.fixture
def session(spark_engine: SparkEngine) -> SparkSession:
    """The one session of the whole run."""
    return spark_engine.session


@pytest.fixture
def by_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every level is expanded by jobs, however few states are known."""
    monkeypatch.setattr(spark, "HERE_STATES_MAX", 0)


def _model(policy: str, bounds: str) -> Model:
    return law_of(preset(policy), named(bounds, preset(policy)))


def _least() -> Model:
    """The least law there is: one request, one message."""
    return law_of(preset("rocketmq-4.9"), Bounds("least", requests=1, messages=1))


def _same(first: Exploration, second: Exploration) -> bool:
    """Counts by instance, depth, and verdicts down to the tokens."""
    counts = [(each.distinct_states, each.depth, dict(each.fired), each.verdicts) for each in (first, second)]
    return counts[0] == counts[1]


@pytest.mark.long
@pytest.mark.usefixtures("by_jobs")
def test_a_cut_level_gives_the_packed_engines_numbers(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few states a task: states, transitions, depth, verdicts and tokens are the same."""
    monkeypatch.setattr(spark, "STATES_A_TASK", 20)
    model = _least()

    assert _same(explore(model, engine="spark", session=session), explore(model))


@pytest.mark.long
@pytest.mark.parametrize(
    "entry",
    [each for each in pinned() if each.bounds in {"tiny", "small"} or (each.policy == "strict" and each.depth < 20)],
    ids=lambda each: f"{each.policy}-{each.bounds}",
)
def test_spark_finds_the_pinned_numbers(session: SparkSession, entry: Entry) -> None:
    """Every preset at tiny and small, and our own with aspects; the driver hands over to jobs or does it all."""
    model = _model(entry.policy, entry.bounds)

    assert entry_of(explore(model, engine="spark", session=session)) == entry


@pytest.mark.long
@pytest.mark.usefixtures("by_jobs")
@pytest.mark.parametrize("policy", ["strict", "rocketmq-4.9", "rocketmq-5"])
def test_jobs_alone_find_the_pinned_numbers(session: SparkSession, policy: str) -> None:
    """At tiny, from the first level on."""
    (entry,) = (each for each in pinned() if (each.policy, each.bounds) == (policy, "tiny"))

    assert entry_of(explore(_model(policy, "tiny"), engine="spark", session=session)) == entry


@pytest.mark.parametrize("most", [20, 1 << 30])
def test_the_driver_searches_and_hands_over(session: SparkSession, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """In the midst, or never; the packed engine's numbers and tokens."""
    monkeypatch.setattr(spark, "HERE_STATES_MAX", most)
    model = _least()

    assert _same(explore(model, engine="spark", session=session, limit_states=30), explore(model, limit_states=30))


@pytest.mark.parametrize("forgets", [False, True])
def test_the_driver_goes_on_with_all_that_is_known(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgets: bool
) -> None:
    """From a level in the midst, with a later one half written. Planted: the first state is forgotten."""
    model, path = _model("strict", "tiny"), tmp_path / "part"
    explore(model, [], engine="spark", session=session, checkpoint=path, limit_states=100)
    depth = len(list(path.glob("level-*")))
    (path / f"level-{depth}").mkdir()
    (path / f"level-{depth}" / "part-9.parquet").write_bytes(b"killed here")
    if forgets:
        honest = here.level_batches
        monkeypatch.setattr(here, "level_batches", lambda level: honest(level) if level.name != "level-0" else iter(()))
    rest = explore(model, [], engine="spark", session=session, checkpoint=path)

    assert rest.complete
    assert (rest.distinct_states == explore(model, []).distinct_states) == (not forgets)


@pytest.mark.parametrize("limit_states", quick_if([100, None], lambda limit: limit is not None))
@pytest.mark.parametrize("here_max", quick_if([spark.HERE_STATES_MAX, 0], bool))
def test_two_goes_give_the_numbers_of_one(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_states: int | None, here_max: int
) -> None:
    """Ctrl-C leaves whole levels, from which the next call goes on; one go has the packed engine's tokens."""
    monkeypatch.setattr(spark, "HERE_STATES_MAX", here_max)
    model = _model("strict", "tiny")

    def interrupt(progress: Progress) -> None:
        if progress.depth == 3:
            signal.raise_signal(signal.SIGINT)

    part = explore(model, [], engine="spark", session=session, checkpoint=tmp_path / "part", report=interrupt)
    (tmp_path / "part" / "level-4").mkdir()
    (tmp_path / "part" / "level-4" / "half-written.parquet").write_bytes(b"killed here")
    depths: list[int] = []
    judged = properties_of(model)
    with pytest.raises(CheckpointError, match="of another law, other bounds or other properties"):
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


def test_what_cannot_be_gone_on_with_is_refused(session: SparkSession, tmp_path: Path) -> None:
    """Other law, damaged file, missing level, somebody else's files: one line each, and nothing is deleted."""
    model, other = _least(), law_of(preset("strict"), Bounds("least", requests=1, messages=1))
    explore(model, [], engine="spark", session=session, checkpoint=tmp_path / "mine", limit_states=10)

    def again(law: Model, where: Path) -> Exploration:
        return explore(law, [], engine="spark", session=session, checkpoint=where)

    with pytest.raises(CheckpointError, match="a search of another law"):
        again(other, tmp_path / "mine")
    with pytest.raises(CheckpointError, match="has files and no search in it"):
        again(model, tmp_path)
    (tmp_path / "mine" / "level-1").rename(tmp_path / "level-1")
    with pytest.raises(CheckpointError, match="level-1 is not whole any more"):
        again(model, tmp_path / "mine")
    (tmp_path / "mine" / STATE_FILE).write_text("{")
    with pytest.raises(CheckpointError, match="is damaged"):
        again(model, tmp_path / "mine")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot use .*; give another --checkpoint"):
        again(model, tmp_path / "file")
    assert (tmp_path / "mine" / "level-0").is_dir()


@pytest.mark.long
@pytest.mark.usefixtures("by_jobs")
def test_a_dropped_partition_is_seen(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were some of the successors lost, counts would be less: the agreement can fail."""
    honest = spark._Search._new
    monkeypatch.setattr(
        spark._Search, "_new", lambda self, path, depth: honest(self, path, depth).filter("pmod(word_0, 3) != 1")
    )
    model = _least()

    found = explore(model, [], engine="spark", session=session, limit_states=20)
    assert found.distinct_states != explore(model, [], limit_states=20).distinct_states


@pytest.mark.usefixtures("by_jobs")
def test_a_level_that_is_not_subtracted_is_seen(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were states not sought in all levels, some would be new again: the agreement can fail."""
    honest = spark._Search._levels
    monkeypatch.setattr(spark._Search, "_levels", lambda self, depths: honest(self, [*depths][:1]))
    model = _least()

    found = explore(model, [], engine="spark", session=session, limit_states=40)
    assert found.distinct_states != explore(model, [], limit_states=40).distinct_states


@pytest.mark.usefixtures("by_jobs")
def test_a_fault_of_spark_is_one_line(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in a worker is told without a traceback."""
    planted = Source(("def expand(*_):", "    raise ValueError('planted in a worker')"), "int8", {})
    monkeypatch.setattr(spark, "source_of", lambda *_: planted)

    with pytest.raises(SparkFailedError, match="Spark failed: ") as told:
        explore(_least(), [], engine="spark", session=session)
    assert "\n" not in str(told.value)


def test_a_worker_tells_what_it_noticed(tmp_path: Path) -> None:
    """Without Spark: successors come once, and the last row has the transitions and the least findings."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - only here

    model = _model("rocketmq-4.9", "tiny")
    layout, judged = layout_of(model), properties_of(model)
    expander = Expander(source_of(model, layout, judged), layout.words, len(model.actions), len(judged))
    first = words_of([layout.pack(model.initial)] * 2, layout.words)
    batches = list(expander.expand([table_of(first)], [True] * len(judged)))
    (tmp_path / "made").mkdir()
    pq.write_table(pa.Table.from_batches(batches), tmp_path / "made" / "part-0.parquet")
    (told,) = told_in(tmp_path / "made")

    assert batches[0].num_rows == sum(told.fired) // 2
    assert words_in(table_of(first)).tolist() == first.tolist()
    assert all(int(key, 16) == layout.pack(model.initial) for _, _, key in told.found)
    assert told.found
