"""The Spark engine: the packed engine's search on a Spark cluster, without symmetry reduction.

A state is packed into 64-bit words, as in the packed engine, and the heads of states are divided into shards. Each
level takes two jobs with one task per shard: the first job expands the shard's states, and the second adds the
successors that are new to the shard (`partition`). Spark schedules the tasks and retries them if a worker is lost.
Tasks pass states as files in a shared directory, so nothing is shuffled. If a search is killed, the next one resumes
from the last complete level and finds the same result. The driver expands small levels itself, with the same functions.
This package must be installed on the workers.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
import pyarrow as pa
from attrs import define
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from longpoll_spec.engines.exploration import Exploration, Ledger, Progress, Report, Witness
from longpoll_spec.engines.packed.compile import Source, source_of
from longpoll_spec.engines.packed.layout import layout_of
from longpoll_spec.engines.packed.partition import runs_backwards
from longpoll_spec.engines.packed.words import mixed, words_of
from longpoll_spec.engines.spark.checkpoint import Checkpoint
from longpoll_spec.engines.spark.partition import Partition, Sources, Told, sources_in, whole
from longpoll_spec.errors import CheckpointError, SparkFailedError
from longpoll_spec.model import Action, Model, Property

NAME: Final = "spark"
TASKS_A_CORE: Final = 2
HERE_STATES_MAX: Final = 200_000
"""The driver expands a level of at most this many states itself, because starting a job would take longer."""
_FAULT_CHARACTERS_MAX: Final = 300
Work: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_Answer = TypeVar("_Answer")


@define
class _Search:
    """A breadth-first search. Invariant: `checkpoint` has all results, and a step counts only when it is complete."""

    model: Model
    ledger: Ledger
    session: SparkSession
    share: Partition
    checkpoint: Checkpoint
    travelling: Callable[[Work], Work]

    def grow(self, limit: int | None, report: Report | None) -> None:
        state = self.checkpoint.state
        while not self.checkpoint.is_complete and (limit is None or sum(state.levels) < limit):
            self._expand(state.expanded)
            if report is not None:
                report(Progress(sum(state.levels), sum(state.fired), len(state.levels) - 1, state.levels[-1]))

    def _expand(self, depth: int) -> None:
        share, coming = self.share, depth + 1
        still_open = [self.ledger.is_open(item) for item in range(len(self.ledger.properties))]
        is_here = self.checkpoint.state.levels[depth] <= HERE_STATES_MAX
        made = self.checkpoint.empty(self.checkpoint.made)
        told = self._by_shares(lambda number: share.expand(number, depth, still_open), Told, is_here)
        self.checkpoint.empty(self.checkpoint.level(coming))
        self._by_shares(lambda number: share.take(number, coming), type(None), is_here)
        self.checkpoint.expanded(told, self.ledger)
        self.checkpoint.empty(made)

    def _by_shares(self, do: Callable[[int], _Answer], kind: type[_Answer], is_here: bool) -> list[_Answer]:
        """The result of `do` for each shard, in any order: computed in this process, or by one Spark task per shard."""
        shares = self.checkpoint.state.shares
        if is_here:
            return [do(number) for number in range(shares)]

        answers = self.checkpoint.empty(self.checkpoint.answers)

        def each(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    with whole(answers / f"{number}.json") as file:
                        file.write(msgspec.json.encode(do(number)))
                yield batch

        numbers = self.session.range(0, shares, 1, shares)
        numbers.mapInArrow(self.travelling(each), "share bigint").write.format("noop").mode("overwrite").save()
        files = list(answers.glob("[0-9]*.json"))
        if len(files) != shares:
            raise SparkFailedError(f"{len(files)} chunks have a result in {answers}, but there are {shares}")
        return [msgspec.json.decode(file.read_bytes(), type=kind) for file in files]

    def before(self, keys: Sequence[int], depth: int) -> dict[int, tuple[int, int]]:
        """Map each key to the least state of a level that leads to it, and the index of the action."""
        share = self.share
        is_here = self.checkpoint.state.levels[depth] <= HERE_STATES_MAX
        return sources_in(self._by_shares(lambda number: share.before(keys, depth, number), Sources, is_here))

    def runs_to(self, witnesses: Sequence[Witness]) -> list[list[Action]]:
        return runs_backwards(self.model, witnesses, self.before)


def explore(
    model: Model,
    properties: Sequence[Property],
    *,
    session: SparkSession,
    parallel: int | None = None,
    travelling: Callable[[Work], Work] = lambda work: work,
    checkpoint: Path | None = None,
    report: Report | None = None,
    limit_states: int | None = None,
) -> Exploration:
    """Explore the model on a Spark session; Ctrl-C ends the search and returns the results of the complete levels.

    `parallel` is the number of tasks that run at once; give it if the session cannot report it (Spark Connect).
    `travelling` wraps the functions that are sent to workers, for example to add this package for workers that lack it.

    Levels are written to the directory `checkpoint`, and a search that is found in the directory is resumed. The
    default is a temporary directory, which works only with a local master. The `seconds` of the result cover this call
    only. Raises `CheckpointError`, `SparkFailedError`, and `BoundsError` as the packed engine does.
    """
    began = time.perf_counter()
    layout = layout_of(model)
    source = source_of(model, layout, properties)
    actions, law = len(model.actions), _name_of(source, [item.name for item in properties])
    with ExitStack() as stack:
        path = stack.enter_context(_directory(session, checkpoint))
        kept = Checkpoint(path)
        stack.enter_context(kept.locked())
        stack.enter_context(_fault_told(kept))
        first = mixed(words_of([layout.pack(model.initial)], layout.words))
        kept.open(law, first, actions, TASKS_A_CORE * (parallel or session.sparkContext.defaultParallelism))
        share = Partition(path, kept.state.shares, source, layout.words, actions, len(properties))
        search = _Search(model, Ledger(properties), session, share, kept, travelling)
        kept.ledger_into(search.ledger)
        compiled = time.perf_counter()
        try:
            search.grow(limit_states, report)
        except KeyboardInterrupt:
            _cancel(session)
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
def _fault_told(checkpoint: Checkpoint) -> Iterator[None]:
    """Turn each exception of Spark or of the disk into an error with a message of one line."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise SparkFailedError(f"Spark failed: {lines[0][:_FAULT_CHARACTERS_MAX] if lines else error!r}") from error
    except OSError as error:
        raise checkpoint.unusable(error) from error


def _directory(session: SparkSession, checkpoint: Path | None) -> Any:
    """A context manager that gives the directory of the search."""
    if checkpoint is not None:
        return nullcontext(checkpoint.absolute())
    if not _master(session).startswith("local"):
        raise CheckpointError("a cluster needs --checkpoint, a directory that the driver and all workers can write to")
    return _temporary_directory()


def _master(session: SparkSession) -> str:
    """The URL of the session's master; "" for Spark Connect, which does not report it."""
    try:
        return session.sparkContext.master or ""
    except PySparkException:
        return ""


def _cancel(session: SparkSession) -> None:
    if _master(session):
        session.sparkContext.cancelAllJobs()
    else:
        session.interruptAll()


@contextmanager
def _temporary_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="longpoll-search-") as name:
        yield Path(name)


def _name_of(source: Source, properties: Sequence[str]) -> str:
    """The SHA-256 of a model, its bounds and the checked properties, which identifies a search."""
    constants = [f"{name}={value!r}" for name, value in sorted(source.constants.items())]
    return hashlib.sha256("\n".join([*source.lines, *constants, *properties]).encode()).hexdigest()
