"""Applies entries one at a time, each in a separate process, and runs the methods: `python -m` prints a row each.

A process is forked from this one, which has imported the dependencies and nothing of the project that matters. So a
case begins in milliseconds, and its remains end with it. A stuck process is ended by its pid after three times its
limit and a minute. It has found nothing: slowness is not a finding.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec
from model_tests.mutants.zoo.catalogue import ENTRIES
from model_tests.mutants.zoo.entry import TABLE, Change, Entry
from model_tests.mutants.zoo.methods import METHODS
from model_tests.mutants.zoo.plant import plant

from longpoll_runtime.recoverable import FAULTS

Outcome = Literal["found", "missed"]
WARM: Final[Mapping[str, Sequence[str]]] = {
    "law": ("numpy",),
    "proof": ("numpy", "z3"),
    "units": ("pytest", "hypothesis.stateful"),
    "machines": ("pytest", "hypothesis.stateful"),
    "wire": ("hypothesis.stateful",),
    "judge": ("hypothesis.stateful", "numpy"),
}
"""What every process of a method would import for itself otherwise; nothing of these starts a thread."""
OF_THE_LAW: Final = frozenset({"law", "proof"})
"""Methods that read what an entry says of the law, and none of the text that it changes."""
GRACE_S: Final = 60.0
"""A machine that others use gives a process a part of its time."""


class Cell(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one method for one entry."""

    entry: str
    method: str
    outcome: Outcome
    what: str = ""
    schedules: int | None = None
    cpu_s: float = 0.0
    """Processor time, imports included."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """A finished process's message; `error` is a fault of the method itself."""

    what: str | None = None
    schedules: int | None = None
    cpu_s: float = 0.0
    error: str = ""


class ZooError(Exception):
    """A method failed by its own fault; the text has its traceback."""


def look(entry: Entry | None, method_name: str, *, told_to: int, limit_s: float) -> None:
    """In a separate process: apply the entry, search, and write the finding."""
    told = Told(error="the method has left the process")
    try:
        told = _looked(entry, method_name, limit_s)
    except FAULTS:
        told = Told(error=traceback.format_exc())
    finally:
        os.write(told_to, msgspec.json.encode(told))
        os._exit(0)


def _looked(entry: Entry | None, method_name: str, limit_s: float) -> Told:
    planter = plant(entry)
    methods = importlib.import_module("model_tests.mutants.zoo.methods")
    method = next(each for each in methods.METHODS if each.name == method_name)
    begun_s = time.process_time()
    seen = method.find(entry or _nothing(), begun_s + limit_s)
    cpu_s = round(time.process_time() - begun_s, 2)
    if seen is None and entry is not None and not planter.loaded and method_name not in OF_THE_LAW:
        return Told(error=f"{method_name} never imports what {entry.id} changes")
    return Told(what=getattr(seen, "what", None), schedules=getattr(seen, "schedules", None), cpu_s=cpu_s)


def _nothing() -> Entry:
    """Changes that change nothing, so that a method that asks which files are changed has some."""
    return Entry("", "ours", "", "", tuple(Change(file, "", "") for file in TABLE))


def cell_of(entry: Entry | None, method_name: str, limit_s: float) -> Cell:
    """Fork, wait and tell; raises ZooError."""
    reads, writes = os.pipe()
    with tempfile.TemporaryFile() as output:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            os.close(reads)
            os.setpgid(0, 0)
            for number in (1, 2):
                os.dup2(output.fileno(), number)
            faulthandler.enable()
            look(entry, method_name, told_to=writes, limit_s=limit_s)
        os.close(writes)
        told, status = _wait(child, reads, 3 * limit_s + GRACE_S)
        output.seek(0)
        said = output.read()[-3000:].decode(errors="replace")
    name = "" if entry is None else entry.id
    if not told and status == signal.SIGKILL:
        return Cell(entry=name, method=method_name, outcome="missed", what="it did not end in its time")
    if not told:
        raise ZooError(f"{method_name} of {name or 'the code as it is'} ended by itself ({status})\n{said}")
    answer = msgspec.json.decode(told, type=Told)
    if answer.error:
        raise ZooError(f"{method_name} of {name or 'the code as it is'}: {answer.error}\n{said}")
    return Cell(
        entry=name,
        method=method_name,
        outcome="missed" if answer.what is None else "found",
        what=answer.what or "",
        schedules=answer.schedules,
        cpu_s=answer.cpu_s,
    )


def _wait(child: int, reads: int, limit_s: float) -> tuple[bytes, int]:
    """The child's output, and its signal or exit code; it is ended at its time limit."""
    with contextlib.closing(os.fdopen(reads, "rb", buffering=0)) as pipe:
        ready, _, _ = select.select([pipe], [], [], limit_s)
        told = pipe.read(1 << 20) if ready else b""
    if not ready:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it has started
    return told or b"", status & 0x7F or status >> 8


def cells(
    entries: Iterable[Entry], names: Sequence[str], report: Callable[[Cell], None] | None = None
) -> Iterator[Cell]:
    """Each entry with each method of these that applies; raises ZooError."""
    warm(names)
    for entry in entries:
        for method in METHODS:
            if method.name in names and method.applies(entry):
                cell = cell_of(entry, method.name, method.limit_of(entry))
                if report is not None:
                    report(cell)
                yield cell


def decode(line: bytes) -> Cell:
    """A row as `main` prints it."""
    return msgspec.json.decode(line, type=Cell)


def warm(names: Iterable[str]) -> None:
    """Import what methods of these names need and is not the project's."""
    for name in names:
        for module in WARM.get(name, ()):
            importlib.import_module(module)


def _fix_hashes() -> None:
    """Begin again with hashes of texts that are the same each time: buckets are dealt to shards by them."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606 - itself


def main(words: Sequence[str] | None = None) -> int:
    """Print a row of JSON for each entry and method as it is done; 2 where a name is not known."""
    _fix_hashes()
    parser = argparse.ArgumentParser(prog="python -m model_tests.mutants.zoo.run", description=__doc__)
    parser.add_argument("ids", nargs="*", metavar="ID", help="only these entries; - is the code as it is")
    parser.add_argument("--method", action="append", choices=[each.name for each in METHODS], help="only this one")
    chosen = parser.parse_args(words)
    known = {entry.id: entry for entry in ENTRIES}
    unknown = [name for name in chosen.ids if name not in known and name != "-"]
    if unknown:
        parser.error(f"no entry {unknown[0]!r}; `python -m model_tests.mutants.zoo` lists them")
    names = chosen.method or [each.name for each in METHODS]
    encode = msgspec.json.Encoder().encode
    if "-" in chosen.ids:
        warm(names)
        for method in METHODS:
            if method.name in names and method.name not in OF_THE_LAW:
                cell = cell_of(None, method.name, method.limit_s)
                sys.stdout.write(encode(cell).decode() + "\n")
                sys.stdout.flush()
    entries = [known[name] for name in chosen.ids if name != "-"] if chosen.ids else ENTRIES
    for cell in cells(entries, names):
        sys.stdout.write(encode(cell).decode() + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
