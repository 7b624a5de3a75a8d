"""A packed search that is told a limit on memory: the same answers from disk, and nothing is left behind."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from longpoll_spec.engines import explore
from longpoll_spec.engines.exploration import Progress
from longpoll_spec.engines.manifest import entry_of, pinned_entry
from longpoll_spec.engines.packed import search as packed
from longpoll_spec.engines.packed import spill as packed_spill
from longpoll_spec.engines.packed.spill import MEGABYTE, Plan, SpillStore, plan_of
from longpoll_spec.engines.packed.words import distinct, key_of, mixed, unmixed, words_of
from longpoll_spec.errors import MemoryShortError
from longpoll_spec.policy import PRESETS
from longpoll_spec.testing.cases import quick_if
from longpoll_spec.testing.models import model_named

TIGHT = Plan(chunk_states=64, stretch_states=300, sorted_states=200)


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every search be so short of memory that each of its levels goes to disk in several runs."""
    monkeypatch.setattr(packed, "plan_of", lambda *_: TIGHT)


@pytest.mark.parametrize("policy", quick_if(PRESETS, lambda name: name == "strict"))
@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"symmetry": True}], ids=["alone", "workers", "symmetry"])
def test_disks_find_the_pinned_numbers(policy: str, options: Mapping[str, Any], tight: None) -> None:
    """States, transitions, depth and every verdict are pinned, and every token is the one found in memory."""
    spilled = explore(model_named(policy), memory_mb=1, **options)

    assert entry_of(spilled) == pinned_entry(policy, "tiny")
    assert spilled.verdicts == explore(model_named(policy), **options).verdicts


@given(st.lists(st.lists(st.lists(st.integers(0, 2**65), max_size=20), max_size=4), max_size=8), st.integers(2, 3))
def test_a_level_on_disk_is_what_was_not_seen(levels: list[list[list[int]]], width: int) -> None:
    """Whatever comes, in however many pieces: a level is what came and was in no level before."""
    store, seen = SpillStore(width, sorted_states=8), set[int]()
    for depth, batches in enumerate(levels):
        for batch in batches:
            store.take(distinct(mixed(words_of(batch, width))))
        level = unmixed(store.next_level().copy())
        keys = [key_of(level, column) for column in range(level.shape[1])]
        assert sorted(keys) == sorted({key for batch in batches for key in batch} - seen)
        assert store.level(depth).shape == level.shape
        seen |= set(keys)


def test_a_full_disk_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tight: None) -> None:
    """The error names the directory and what to set, alone and from a worker."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    for workers in (1, 2):
        with pytest.raises(MemoryShortError, match=r"cannot write to .*: No space left on device; set TMPDIR"):
            explore(model_named("strict"), memory_mb=1, workers=workers)


@given(st.integers(1, 10**6), st.integers(1, 64), st.integers(1, 12), st.integers(1, 500))
@example(101, 2, 1, 1)  # the least chunk is more than a third of what a worker has
def test_a_plan_stays_within_its_limit(memory_mb: int, workers: int, words: int, actions: int) -> None:
    """Whatever is asked: either it is refused, or chunks, stretches and sorting together fit what there is."""
    try:
        plan = plan_of(memory_mb, 100, workers, words, actions)
    except MemoryShortError as error:
        assert f"{memory_mb} MB is too little" in str(error)  # noqa: PT017 - either outcome is right
        return
    state = 8 * words
    chunk = plan.chunk_states * (state * actions + packed_spill.COLUMNS_BYTES)
    sorting = packed_spill.COPIES * state * (plan.stretch_states + plan.sorted_states)
    assert workers * (chunk + sorting) <= (memory_mb - 100) * MEGABYTE
    assert min(plan.chunk_states, plan.stretch_states, plan.sorted_states) >= packed_spill.CHUNK_STATES_MIN


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("workers", [1, 2])
def test_no_file_is_left_however_it_ends(how: signal.Signals, workers: int, tmp_path: Path) -> None:
    """Files have no name from the start, so an interrupt or a kill in the middle leaves nothing."""
    code = (
        "import os, signal, sys\n"
        "from longpoll_spec.bounds import named\n"
        "from longpoll_spec.engines import explore\n"
        "from longpoll_spec.law import law_of\n"
        "from longpoll_spec.policy import preset\n"
        "def end(now):\n"
        "    if now.depth == 9: os.kill(os.getpid(), int(sys.argv[1]))\n"
        "model = law_of(preset('strict'), named('tiny', preset('strict')))\n"
        "found = explore(model, memory_mb=2000, workers=int(sys.argv[2]), report=end)\n"
        "print(found.complete, found.depth, found.distinct_states > 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(int(how)), str(workers)],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert list(tmp_path.iterdir()) == []
    if how == signal.SIGINT:
        assert done.stdout.split() == ["False", "9", "True"], done.stderr
    else:
        assert done.returncode == -signal.SIGKILL


def test_files_go_where_the_system_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tight: None) -> None:
    """Another directory for temporary files is used, and has nothing in it while the search runs."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made: list[str] = []
    honest = tempfile.TemporaryFile

    def noted() -> Any:
        file = honest()
        made.append(str(Path(f"/proc/self/fd/{file.fileno()}").readlink()))
        return file

    monkeypatch.setattr(packed_spill, "TemporaryFile", noted)
    names: list[Path] = []

    def look(_: Progress) -> None:
        names.extend(tmp_path.iterdir())

    explore(model_named("strict"), memory_mb=1, report=look)
    assert made
    assert all(name.startswith(str(tmp_path)) for name in made)
    assert names == []


_STARTED_BY_A_LARGE_ONE: Final = """
import subprocess, sys
large = bytearray(b"1") * (400 << 20)
measure = "from longpoll_spec.engines.packed.search import program_mb; print(program_mb())"
print(subprocess.run([sys.executable, "-c", measure], check=True, capture_output=True, text=True).stdout)
"""


@pytest.mark.long
def test_what_the_starting_process_has_does_not_count() -> None:
    """The memory that a program itself takes is its own: a search is not refused because a large program began it."""
    done = subprocess.run(
        [sys.executable, "-c", _STARTED_BY_A_LARGE_ONE],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert 5 < int(done.stdout) < 400


_WATCHED: Final = """
import sys, threading
from longpoll_spec.bounds import named
from longpoll_spec.engines import explore
from longpoll_spec.law import law_of
from longpoll_spec.policy import preset
peak, over = [0], threading.Event()
def watch():
    while not over.wait(0.01):
        text = open("/proc/self/status").read()
        peak[0] = max(peak[0], int(text.split("RssAnon:")[1].split()[0]) >> 10)
threading.Thread(target=watch, daemon=True).start()
model = law_of(preset("strict"), named("bench", preset("strict")))
limit = int(sys.argv[1])
found = explore(model, [], memory_mb=limit or None)
over.set()
print(peak[0], found.distinct_states, found.transitions, found.depth)
"""


@pytest.mark.long
def test_a_search_that_takes_a_gigabyte_stays_within_its_limit() -> None:
    """Bounds `bench` with a limit of 400 MB: less than that is used at any moment looked at, and more without it."""
    told: list[list[int]] = []
    for limit in (400, 0):
        done = subprocess.run(
            [sys.executable, "-c", _WATCHED, str(limit)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        told.append([int(word) for word in done.stdout.split()])
    (limited, *counts), (unlimited, *same) = told

    assert limited <= 400 < unlimited
    assert counts == same
