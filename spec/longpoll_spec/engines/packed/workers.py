"""The workers of a packed search: processes that each own a range of heads and expand the levels in lockstep.

| step   | every worker                                                                                |
|--------|---------------------------------------------------------------------------------------------|
| expand | expands a batch of its level and puts the sorted successors into its tray, cut by owner     |
| take   | takes its states from every tray and adds the new ones                                      |
| level  | goes on to the next level, once all workers have expanded everything                        |

A tray is the buffer in which a worker offers successors to the other workers. The foreman, which is the process that
called `explore`, starts a step only after all workers have finished the previous step, so no tray is written while it
is read. Trays are anonymous memory that the processes share because they are forked, so nothing is left behind however
a process ends. If the foreman dies, its workers see the end of their pipes and exit. A platform without fork gets an
error.
"""

from __future__ import annotations

import mmap
import multiprocessing
import signal
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, Final, cast

import attrs
import numpy as np
import numpy.typing as npt
from attrs import define, field, frozen

from longpoll_spec.engines.packed.partition import Part, Stretch
from longpoll_spec.engines.packed.words import WORD_BITS, Words, first_head, mixed, no_words, words_of
from longpoll_spec.errors import EngineLimitError, MemoryShortError

WORKERS_MAX: Final = 64
WORD_BYTES: Final = WORD_BITS // 8
INSTEAD: Final = "use --memory-mb, --symmetry, --max-states or smaller bounds"
"""The advice in the error if memory is short."""
PATIENCE_S: Final = 5.0
"""The seconds that a worker may take to exit before it is killed."""


@frozen
class _Tray:
    """The successors of one worker's batch. Worker k owns the columns from `cuts[k]` up to `cuts[k + 1]`."""

    cuts: npt.NDArray[np.uint64]
    words: Words


def _tray(workers: int, states: int, words: int) -> _Tray:
    shared = np.frombuffer(mmap.mmap(-1, (workers + 1 + states * words) * WORD_BYTES), dtype=np.uint64)
    return _Tray(shared[: workers + 1], shared[workers + 1 :].reshape(words, states))


@frozen
class _Worker:
    """One worker process. A worker has its part of the search, all trays and the pipe to the foreman."""

    part: Part
    trays: tuple[_Tray, ...]
    pipe: Connection

    def work(self) -> None:
        """Carry out the foreman's steps until it sends `end` or closes the pipe."""
        # The terminal sends Ctrl-C to the workers too, but the foreman handles it and then still waits for their
        # answers.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            try:
                name, *given = self.pipe.recv()
            except EOFError:
                return
            if name == "end":
                return
            try:
                answer: object = getattr(self, name)(*given)
            except MemoryError:
                answer = MemoryError()
            except MemoryShortError as error:
                answer = error
            self.pipe.send(answer)

    def expand(self, still_open: Sequence[bool]) -> Stretch:
        """Expand the next batch, and put its successors into this worker's tray."""
        made, words = self.part.stretch(still_open)
        tray = self.trays[self.part.number]
        ends = np.array([first_head(number, len(self.trays)) for number in range(1, len(self.trays))], dtype=np.uint64)
        tray.cuts[0], tray.cuts[-1] = 0, words.shape[1]
        tray.cuts[1:-1] = words[0].searchsorted(ends)
        tray.words[:, : words.shape[1]] = words
        return made

    def take(self) -> None:
        """Add the states that this worker owns from every tray."""
        for tray in self.trays:
            start, end = (int(cut) for cut in tray.cuts[self.part.number : self.part.number + 2])
            self.part.take(tray.words[:, start:end].copy())

    def begin(self, first: int) -> None:
        self.part.begin()
        words = mixed(words_of([first], self.part.words))
        begin, end = (first_head(number, len(self.trays)) for number in (self.part.number, self.part.number + 1))
        is_own = begin <= int(words[0, 0]) < end
        self.part.take(words if is_own else no_words(self.part.words))

    def next_level(self) -> int:
        return self.part.next_level()

    def before(self, keys: Sequence[int], depth: int) -> dict[int, tuple[int, int]]:
        return self.part.before(keys, depth)


@define
class Workers:
    """The workers, as the foreman controls them. Invariant: `owing` has the workers that have not answered yet."""

    workers: list[ForkProcess]
    pipes: list[Connection]
    owing: set[int] = field(factory=set)
    interrupted: bool = False
    """Whether Ctrl-C came while the workers were working; their results still count."""

    def begin(self, first: int) -> None:
        """Begin the search with the first state."""
        self._ask("begin", first)

    def next_level(self) -> int:
        """Start the next level; returns the number of its states."""
        return sum(self._ask("next_level"))

    def stretch(self, still_open: Sequence[bool]) -> list[Stretch]:
        """Let every worker expand its next batch, and then add the successors that it owns."""
        made: list[Stretch] = self._ask("expand", list(still_open))
        self._ask("take")
        return made

    def before(self, keys: Sequence[int], depth: int) -> dict[int, tuple[int, int]]:
        """Map each key to the least state of level `depth` that leads to it, and the index of the action."""
        sources: dict[int, tuple[int, int]] = {}
        for found in self._ask("before", keys, depth):
            sources |= {key: min(source, sources.get(key, source)) for key, source in found.items()}
        return sources

    def close(self) -> None:
        """Stop every worker, by force if necessary."""
        for pipe in self.pipes:
            try:
                pipe.send(("end",))
            except OSError:
                continue  # This worker has exited already.
        for worker in self.workers:
            worker.join(0 if self.owing else PATIENCE_S)
            if worker.is_alive():
                worker.kill()
                worker.join()
            worker.close()
        for pipe in self.pipes:
            pipe.close()

    def _ask(self, *question: object) -> list[Any]:
        self._collect()  # first receive the answers to a question that Ctrl-C interrupted
        for number, pipe in enumerate(self.pipes):
            self.owing.add(number)
            self._send(number, pipe, question)
        answers = self._collect()
        return [answers[number] for number in range(len(self.pipes))]

    def _send(self, number: int, pipe: Connection, question: object) -> None:
        try:
            pipe.send(question)
        except OSError as error:
            raise self._gone(number) from error

    def _collect(self) -> dict[int, Any]:
        answers: dict[int, Any] = {}
        while self.owing:
            try:
                ready = wait([self.pipes[number] for number in self.owing])
                for number in sorted(number for number in self.owing if self.pipes[number] in ready):
                    answers[number] = self._answer(number)
                    self.owing.discard(number)
            except KeyboardInterrupt:
                if self.interrupted:
                    raise
                self.interrupted = True
        return answers

    def _answer(self, number: int) -> object:
        try:
            answer: object = self.pipes[number].recv()
        except (EOFError, ConnectionResetError) as error:
            raise self._gone(number) from error
        if isinstance(answer, MemoryShortError):
            raise answer
        if isinstance(answer, MemoryError):
            raise MemoryShortError(f"worker {number + 1} of {len(self.pipes)} ran out of memory; {INSTEAD}")
        return answer

    def _gone(self, number: int) -> MemoryShortError:
        self.workers[number].join(PATIENCE_S)
        code = self.workers[number].exitcode
        how = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        return MemoryShortError(
            f"worker {number + 1} of {len(self.pipes)} {how}, so its states are lost; if memory was short, {INSTEAD}"
        )


def workers_of(part: Part, workers: int) -> Workers:
    """Start `workers` processes, each with a copy of this empty part; raises `EngineLimitError` if it cannot."""
    if not 1 <= workers <= WORKERS_MAX:
        raise EngineLimitError(f"--workers must be from 1 to {WORKERS_MAX}, not {workers}")
    if "fork" not in multiprocessing.get_all_start_methods():
        raise EngineLimitError("this platform has no fork, which workers need; remove --workers")
    context = multiprocessing.get_context("fork")
    trays = tuple(_tray(workers, part.most, part.words) for _ in range(workers))
    crew = Workers([], [])
    with ExitStack() as undo:
        undo.callback(crew.close)
        for number in range(workers):
            mine, theirs = cast("tuple[Any, Any]", context.Pipe())
            crew.pipes.append(mine)
            own = attrs.evolve(part, number=number, shares=workers)
            worker = _Worker(own, trays, theirs)
            process = context.Process(target=_run, args=(worker, tuple(crew.pipes)), daemon=True)
            try:
                start_process(process)
            except OSError as error:
                theirs.close()
                raise EngineLimitError(
                    f"cannot start worker {number + 1} of {workers}: {error}; use --workers {max(1, number)}"
                ) from error
            crew.workers.append(process)
            theirs.close()
        undo.pop_all()
    return crew


def start_process(process: ForkProcess) -> None:
    """Fork a worker with Ctrl-C blocked, so that Ctrl-C cannot end it before it ignores the signal.

    Python 3.12 warns about forks in a process with threads. The fork is safe nevertheless, because a worker takes no
    lock that another thread could hold.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(worker: _Worker, foreman_ends: Sequence[Connection]) -> None:
    """Run the worker in its process.

    The worker first closes its copies of the foreman's pipe ends, because with these copies open it would not notice
    that the foreman exits.
    """
    for pipe in foreman_ends:
        pipe.close()
    worker.work()
