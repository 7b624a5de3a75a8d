"""The Spark engine: a level of the search is a DataFrame, and any cluster that Spark runs on can share the work.

A state is a row of exact 64-bit words, the same as in the packed engine. A level's successors come from `mapInArrow`
with the packed engine's own expanding function, sent as text; what `distinct` and an anti-join with all levels so far
leave of them is the next level. Each level is written to a directory, so a search that was killed goes on from the last
whole level, with the same result. As long as few states are known the driver expands their levels itself (`here`).
Leaves out making a session, and symmetry. Workers need this package installed.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
from attrs import define
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from longpoll_spec.engines.exploration import Exploration, Ledger, Progress, Report, Witness
from longpoll_spec.engines.packed.backwards import runs_backwards
from longpoll_spec.engines.packed.compile import source_of
from longpoll_spec.engines.packed.layout import layout_of
from longpoll_spec.engines.packed.source import Source
from longpoll_spec.engines.packed.words import words_of
from longpoll_spec.engines.spark.checkpoint import Checkpoint, told_in
from longpoll_spec.engines.spark.expand import (
    TOLD,
    Expander,
    made_schema,
    names_of,
    sources_in,
    sources_schema,
    words_schema,
)
from longpoll_spec.engines.spark.here import Here, level_batches
from longpoll_spec.errors import CheckpointError, SparkFailedError
from longpoll_spec.model import Action, Model, Property

NAME: Final = "spark"
STATES_A_TASK: Final = 100_000
"""States in one task of a step, as far as there are cores for the tasks."""
TASKS_A_CORE: Final = 2
HERE_STATES_MAX: Final = 4_000_000
"""As long as no more states are known the driver expands levels itself: a job takes longer to be made than they do."""
SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_FAULT_CHARACTERS_MAX: Final = 300
_SQL_TYPES: Final = {pa.string(): "string", pa.int64(): "bigint"}


@define
class _Search:
    """A breadth-first search. Invariant: what counts is in `checkpoint`, and a step counts when it is whole."""

    model: Model
    ledger: Ledger
    session: SparkSession
    expander: Expander
    checkpoint: Checkpoint
    _here: Here | None = None
    """What is known, as long as the driver searches."""

    def grow(self, limit: int | None, report: Report | None) -> None:
        """Expand level after level until nothing is new, or the limit is reached."""
        state = self.checkpoint.state
        while not self.checkpoint.is_complete and (limit is None or sum(state.levels) < limit):
            self._expand(state.expanded)
            if report is not None:
                report(Progress(sum(state.levels), sum(state.fired), len(state.levels) - 1, state.levels[-1]))

    def _expand(self, depth: int) -> None:
        """Expand a level; write the next."""
        still_open = [self.ledger.is_open(item) for item in range(len(self.ledger.properties))]
        if sum(self.checkpoint.state.levels) > HERE_STATES_MAX:
            self._here = None
            self._expand_there(depth, still_open)
            return
        if self._here is None:
            self._here = Here.knowing(self.checkpoint, self.expander, depth)
        self.checkpoint.expanded(self._here.expand(depth, still_open), self.ledger)

    def _expand_there(self, depth: int, still_open: Sequence[bool]) -> None:
        """Expand a level by jobs."""
        states = self.checkpoint.state.levels[depth]
        expander = self.expander

        def expand(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return expander.expand(batches, still_open)

        made_path = self.checkpoint.work("made")
        level = self._cut(self._levels([depth]), states)
        level.mapInArrow(expand, _ddl(made_schema(self.expander.words))).write.parquet(str(made_path))
        with self._partitions(states):
            self._new(made_path, depth).write.mode("overwrite").parquet(str(self.checkpoint.level(depth + 1)))
        self.checkpoint.expanded(told_in(made_path), self.ledger)
        self.checkpoint.work("made")

    def _new(self, made_path: Path, depth: int) -> DataFrame:
        """The successors that are in no level so far, each once."""
        names = names_of(self.expander.words)
        made = self.session.read.schema(_ddl(made_schema(self.expander.words))).parquet(str(made_path))
        states = made.filter(made[TOLD].isNull()).select(*names).distinct()
        return states.join(self._levels(range(depth + 1)), names, "left_anti")

    def _levels(self, depths: Iterable[int]) -> DataFrame:
        paths = [str(self.checkpoint.level(depth)) for depth in depths]
        return self.session.read.schema(_ddl(words_schema(self.expander.words))).parquet(*paths)

    def _cut(self, states: DataFrame, count: int) -> DataFrame:
        """The states in as many partitions as are worth a task."""
        tasks = self._tasks(count)
        return states.repartition(tasks) if tasks > 1 else states.coalesce(1)

    def _tasks(self, states: int) -> int:
        most = TASKS_A_CORE * self.session.sparkContext.defaultParallelism
        return max(1, min(most, -(-states // STATES_A_TASK)))

    @contextmanager
    def _partitions(self, states: int) -> Iterator[None]:
        """What is shuffled inside goes to as many partitions as are worth a task."""
        before = self.session.conf.get(SHUFFLE_PARTITIONS)
        self.session.conf.set(SHUFFLE_PARTITIONS, str(self._tasks(states)))
        try:
            yield
        finally:
            if before is not None:
                self.session.conf.set(SHUFFLE_PARTITIONS, before)

    def before(self, keys: Sequence[int], depth: int) -> dict[int, tuple[int, int]]:
        """For each key the least state of a level that leads to it, with the index of the action."""
        if self.checkpoint.state.levels[depth] <= HERE_STATES_MAX:
            return sources_in(self.expander.before(level_batches(self.checkpoint.level(depth)), keys))
        expander = self.expander

        def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return expander.before(batches, keys)

        path = self.checkpoint.work("before")
        level = self._cut(self._levels([depth]), self.checkpoint.state.levels[depth])
        level.mapInArrow(look, _ddl(sources_schema())).write.parquet(str(path))
        return sources_in(ds.dataset(sorted(map(str, path.glob("*.parquet")))).to_batches())

    def runs_to(self, witnesses: Sequence[Witness]) -> list[list[Action]]:
        """The runs to witnesses."""
        return runs_backwards(self.model, witnesses, self.before)


def explore(
    model: Model,
    properties: Sequence[Property],
    *,
    session: SparkSession,
    checkpoint: Path | None = None,
    report: Report | None = None,
    limit_states: int | None = None,
) -> Exploration:
    """Explore the model on a session; Ctrl-C ends it with what is known of whole levels.

    Levels are written to `checkpoint`, and a search that is there already goes on; without one they go to a directory
    that ends with the search, which only a local master can share. `seconds` are those of this call. Raises
    `CheckpointError`, `SparkFailedError`, and `BoundsError` as the packed engine does.
    """
    began = time.perf_counter()
    layout = layout_of(model)
    source = source_of(model, layout, properties)
    expander = Expander(source, layout.words, len(model.actions), len(properties))
    with _fault_told(), _directory(session, checkpoint) as path:
        search = _Search(model, Ledger(properties), session, expander, Checkpoint(path))
        law = _name_of(source, [item.name for item in properties])
        search.checkpoint.open(law, words_of([layout.pack(model.initial)], layout.words), len(model.actions))
        search.checkpoint.ledger_into(search.ledger)
        compiled = time.perf_counter()
        try:
            search.grow(limit_states, report)
        except KeyboardInterrupt:
            session.sparkContext.cancelAllJobs()
        seconds = time.perf_counter() - compiled
        state, complete = search.checkpoint.state, search.checkpoint.is_complete
        return Exploration(
            model=model,
            engine=NAME,
            distinct_states=sum(state.levels),
            transitions=sum(state.fired),
            depth=len(state.levels) - 1,
            seconds=seconds,
            compile_seconds=compiled - began,
            complete=complete,
            verdicts=search.ledger.verdicts(model, complete, search.runs_to),
            fired={action.label: state.fired[index] for index, action in enumerate(model.actions)},
        )


@contextmanager
def _fault_told() -> Iterator[None]:
    """Spark's faults as one line."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise SparkFailedError(f"Spark failed: {lines[0][:_FAULT_CHARACTERS_MAX] if lines else error!r}") from error


def _directory(session: SparkSession, checkpoint: Path | None) -> Any:
    """Where levels go: a context that gives the path."""
    if checkpoint is not None:
        return nullcontext(checkpoint.absolute())
    if not (session.sparkContext.master or "").startswith("local"):
        raise CheckpointError("a cluster needs --checkpoint: a directory that the driver and all workers can write to")
    return _temporary_directory()


@contextmanager
def _temporary_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="longpoll-search-") as name:
        yield Path(name)


def _name_of(source: Source, properties: Sequence[str]) -> str:
    """Names a law with its bounds, and what is judged: the text of both, digested."""
    constants = [f"{name}={value!r}" for name, value in sorted(source.constants.items())]
    return hashlib.sha256("\n".join([*source.lines, *constants, *properties]).encode()).hexdigest()


def _ddl(schema: pa.Schema) -> str:
    """An Arrow schema in Spark's words."""
    return ", ".join(f"`{column.name}` {_SQL_TYPES[column.type]}" for column in schema)
