"""The packed engine: worker processes, disk, symmetry and its table of states."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import permutations, product
from multiprocessing import connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from model_tests.support.spec.cases import model_named, quick_if
from model_tests.support.spec.strategies import runs

from longpoll.cli import main
from longpoll_spec.bounds import Bounds, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.evaluate import evaluate, values_of
from longpoll_spec.engines.exploration import Exploration, Progress
from longpoll_spec.engines.manifest import Entry, entry_of, pinned, pinned_entry
from longpoll_spec.engines.packed import DISABLED, sorts_slowly, store, words
from longpoll_spec.engines.packed import partition as packed_part
from longpoll_spec.engines.packed import search as packed
from longpoll_spec.engines.packed import workers as packed_workers
from longpoll_spec.engines.packed.orbits import Orbits, orbits_of
from longpoll_spec.engines.packed.store import MEGABYTE, Plan, SpillStore, WordTable, plan_of
from longpoll_spec.engines.packed.words import Words, distinct, first_head, key_of, mixed, unmixed, words_of
from longpoll_spec.engines.symmetry import Renaming
from longpoll_spec.engines.tokens import replay
from longpoll_spec.errors import EngineLimitError, MemoryShortError, SymmetryError
from longpoll_spec.model import Model
from longpoll_spec.policy import PRESETS, preset
from longpoll_spec.specification import properties_of, specification_of


@pytest.fixture(autouse=True)
def _nobody_is_left() -> Iterator[None]:
    yield
    assert not multiprocessing.active_children()


def test_a_level_expanded_in_many_batches_gives_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_part, "CHUNK_STATES", 64)
    monkeypatch.setattr(packed_part, "STRETCH_STATES", 256)

    for workers in (1, 2):
        assert entry_of(explore(model_named("strict"), workers=workers)) == pinned_entry("strict", "tiny")


def test_the_ranges_of_workers_cover_all_heads() -> None:
    for workers in range(1, packed_workers.WORKERS_MAX + 1):
        firsts = [first_head(number, workers) for number in range(workers + 1)]
        assert firsts[0] == 0
        assert firsts[-1] == 2**64
        assert firsts == sorted(set(firsts))


def test_an_interrupt_ends_the_workers_and_keeps_what_is_known() -> None:
    def interrupt(progress: Progress) -> None:
        if progress.depth == 5:
            signal.raise_signal(signal.SIGINT)

    result = explore(model_named("strict"), workers=2, report=interrupt)

    assert not result.complete
    assert result.depth == 5
    assert 0 < result.distinct_states < pinned_entry("strict", "tiny").distinct_states
    assert result.verdict("no_lost_wakeup").verdict == "unknown"
    assert result.verdict("some_pulling").verdict == "reached"


def test_after_an_interrupt_the_current_step_of_workers_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def interrupted(pipes: list[object]) -> object:
        asked.append(len(pipes))
        if len(asked) == 40:
            raise KeyboardInterrupt
        return connection.wait(pipes)  # type: ignore[arg-type]

    monkeypatch.setattr(packed_workers, "wait", interrupted)
    result = explore(model_named("rocketmq-4.9"), workers=2)

    assert not result.complete
    assert 0 < result.distinct_states < pinned_entry("rocketmq-4.9", "tiny").distinct_states
    for verdict in result.verdicts:
        if verdict.token is not None:
            assert replay(verdict.token).depth == verdict.depth


def test_a_worker_that_is_killed_is_reported() -> None:
    def kill(progress: Progress) -> None:
        if progress.depth == 4:
            victim = multiprocessing.active_children()[0].pid
            assert victim is not None
            os.kill(victim, signal.SIGKILL)

    with pytest.raises(MemoryShortError, match=r"worker [12] of 2 was ended by signal 9.* use --memory-mb"):
        explore(model_named("strict"), workers=2, report=kill)


def test_a_worker_without_memory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_self: packed_part.Part, _words: object) -> None:
        raise MemoryError

    monkeypatch.setattr(packed_part.Part, "take", full)
    with pytest.raises(MemoryShortError, match=r"worker [12] of 2 ran out of memory; use --memory-mb"):
        explore(model_named("strict"), workers=2)
    with pytest.raises(MemoryShortError, match=r"this search ran out of memory"):
        explore(model_named("strict"))


def test_workers_that_cannot_all_start_leave_none(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = packed_workers.start_process
    begun: list[object] = []

    def refused(process: ForkProcess) -> None:
        if begun:
            raise BlockingIOError("no more processes")
        begun.append(process)
        starts(process)

    monkeypatch.setattr(packed_workers, "start_process", refused)
    with pytest.raises(EngineLimitError, match="cannot start worker 2 of 3: no more processes; use --workers 1"):
        explore(model_named("strict"), workers=3)


TIGHT = Plan(chunk_states=64, stretch_states=300, sorted_states=200)


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make memory so scarce that each level of a search goes to disk in several runs."""
    monkeypatch.setattr(packed, "plan_of", lambda *_: TIGHT)


@pytest.mark.parametrize("policy", quick_if(PRESETS, lambda name: name == "strict"))
@pytest.mark.parametrize("options", [{}, {"workers": 2}], ids=["alone", "workers"])
def test_a_search_on_disk_finds_the_pinned_numbers(policy: str, options: Mapping[str, Any], tight: None) -> None:
    spilled = explore(model_named(policy), memory_mb=1, **options)

    assert entry_of(spilled) == pinned_entry(policy, "tiny")
    assert spilled.verdicts == explore(model_named(policy), **options).verdicts


@given(st.lists(st.lists(st.lists(st.integers(0, 2**65), max_size=20), max_size=4), max_size=8), st.integers(2, 3))
def test_a_level_on_disk_has_exactly_the_new_states(levels: list[list[list[int]]], width: int) -> None:
    store, seen = SpillStore(width, sorted_states=8), set[int]()
    for depth, batches in enumerate(levels):
        for batch in batches:
            store.take(distinct(mixed(words_of(batch, width))))
        level = unmixed(store.next_level().copy())
        keys = [key_of(level, column) for column in range(level.shape[1])]
        assert sorted(keys) == sorted({key for batch in batches for key in batch} - seen)
        assert store.level(depth).shape == level.shape
        seen |= set(keys)


def test_a_full_disk_is_one_error_line(monkeypatch: pytest.MonkeyPatch, tight: None) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    for workers in (1, 2):
        with pytest.raises(MemoryShortError, match=r"cannot write to .*: No space left on device; set TMPDIR"):
            explore(model_named("strict"), memory_mb=1, workers=workers)


@given(st.integers(1, 10**6), st.integers(1, 64), st.integers(1, 12), st.integers(1, 500))
@example(101, 2, 1, 1)  # Here the smallest chunk needs more than a third of a worker's memory.
def test_a_plan_stays_within_its_limit(memory_mb: int, workers: int, words: int, actions: int) -> None:
    try:
        plan = plan_of(memory_mb, 100, workers, words, actions)
    except MemoryShortError as error:
        assert f"{memory_mb} MB is too little" in str(error)  # noqa: PT017 - either outcome is right
        return
    state = 8 * words
    chunk = plan.chunk_states * (state * actions + store.COLUMNS_BYTES)
    sorting = store.COPIES * state * (plan.stretch_states + plan.sorted_states)
    assert workers * (chunk + sorting) <= (memory_mb - 100) * MEGABYTE
    assert min(plan.chunk_states, plan.stretch_states, plan.sorted_states) >= store.CHUNK_STATES_MIN


@pytest.mark.parametrize(("how", "workers"), [(signal.SIGINT, 1), (signal.SIGKILL, 2)])
def test_no_file_is_left_however_the_search_ends(how: signal.Signals, workers: int, tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from longpoll_spec.bounds import named\n"
        "from longpoll_spec.engines import explore\n"
        "from longpoll_spec.specification import specification_of\n"
        "from longpoll_spec.policy import preset\n"
        "def end(now):\n"
        "    if now.depth == 9: os.kill(os.getpid(), int(sys.argv[1]))\n"
        "model = specification_of(preset('strict'), named('tiny', preset('strict')))\n"
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


def test_spilled_files_are_in_the_systems_temporary_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tight: None
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made: list[str] = []
    honest = tempfile.TemporaryFile

    def noted() -> Any:
        file = honest()
        made.append(str(Path(f"/proc/self/fd/{file.fileno()}").readlink()))
        return file

    monkeypatch.setattr(store, "TemporaryFile", noted)
    names: list[Path] = []

    def look(_: Progress) -> None:
        names.extend(tmp_path.iterdir())

    explore(model_named("strict"), memory_mb=1, report=look)
    assert made
    assert all(name.startswith(str(tmp_path)) for name in made)
    assert names == []


_WATCHED: Final = """
import sys, threading
from longpoll_spec.bounds import named
from longpoll_spec.engines import explore
from longpoll_spec.specification import specification_of
from longpoll_spec.policy import preset
peak, over = [0], threading.Event()
def watch():
    while not over.wait(0.01):
        text = open("/proc/self/status").read()
        peak[0] = max(peak[0], int(text.split("RssAnon:")[1].split()[0]) >> 10)
threading.Thread(target=watch, daemon=True).start()
model = specification_of(preset("strict"), named("bench", preset("strict")))
limit = int(sys.argv[1])
found = explore(model, [], memory_mb=limit or None)
over.set()
print(peak[0], found.distinct_states, found.transitions, found.depth)
"""


@pytest.mark.long
def test_a_search_that_takes_a_gigabyte_stays_within_its_limit() -> None:
    """The search of bounds `bench` never takes more than a limit of 400 MB, and takes more without a limit."""
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


def test_check_gives_the_same_numbers_however_it_searches() -> None:
    entry = pinned_entry("rocketmq-4.9", "tiny")
    named = [word for name in entry.violated for word in ("--property", name)]
    words = ["check", "--policy", "rocketmq-4.9", "--bounds", "tiny", *named, "--workers", "2", "--symmetry", "--json"]
    done = CliRunner().invoke(main, words)

    made = json.loads(done.stdout)
    assert done.exit_code == 1
    assert (made["distinct_states"], made["transitions"], made["depth"]) == (
        entry.distinct_states,
        entry.transitions,
        entry.depth,
    )
    violated = {row["name"]: row["depth"] for row in made["properties"] if row["verdict"] == "violated"}
    assert violated == entry.violated


@pytest.mark.parametrize(
    ("options", "code", "line"),
    [
        ("--workers 0", 2, "--workers must be from 1 to 64, not 0"),
        ("--workers 2 --engine python", 2, "the python engine has no workers; use --engine packed"),
        ("--symmetry --engine python", 2, "the python engine has no symmetry; use --engine packed"),
        ("--memory-mb 900 --engine python", 2, "the python engine has no memory_mb; use --engine packed"),
        ("--memory-mb 1", 3, "1 MB is too little memory; this search needs .*increase --memory-mb"),
    ],
)
def test_an_impossible_option_is_one_line(options: str, code: int, line: str) -> None:
    done = CliRunner().invoke(main, ["check", "--bounds", "tiny", *options.split()], env={"COLUMNS": "300"})

    assert done.exit_code == code
    assert re.search(line, done.stderr)
    assert len(done.stderr.strip().splitlines()) == 1


WORDS = st.integers(0, 40) | st.integers(0, 2**64 - 1)
WIDTHS = st.integers(1, 3)


def _keys(made: words.Words) -> list[int]:
    return [key_of(made, column) for column in range(made.shape[1])]


def _wide(numbers: list[int], width: int) -> list[int]:
    return [sum((number * (row + 1) % 2**64) << (64 * row) for row in range(width)) for number in numbers]


def _check_is_a_set(table: WordTable, batches: list[list[int]], width: int) -> None:
    members = set[int]()
    for batch in batches:
        new = _keys(unmixed(table.add(distinct(mixed(words_of(batch, width))))))
        assert sorted(new) == sorted(set(batch) - members)
        members |= set(batch)
    assert table.used == len(members)


@given(st.lists(st.lists(WORDS, max_size=30), max_size=12), st.integers(1, 6), WIDTHS)
@settings(max_examples=40)
def test_a_word_table_is_a_set(batches: list[list[int]], bits: int, width: int) -> None:
    _check_is_a_set(WordTable(width, bits), [_wide(batch, width) for batch in batches], width)


@given(st.lists(st.lists(WORDS, max_size=30), max_size=12), st.integers(2, 5), st.data())
def test_a_table_for_one_range_of_heads_is_a_set(batches: list[list[int]], shares: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, shares - 1))
    first, end = first_head(number, shares), first_head(number + 1, shares)
    own = [[first + head % (end - first) for head in batch] for batch in batches]
    keys = [_keys(unmixed(words_of(batch, 1))) for batch in own]

    _check_is_a_set(WordTable(1, 2, number=number, shares=shares), keys, 1)


@given(st.lists(st.integers(0, 2**130), max_size=40), WIDTHS)
def test_unmixing_inverts_mixing(keys: list[int], width: int) -> None:
    short = [key % 2 ** (64 * width) for key in keys]
    stirred = mixed(words_of(short, width))

    assert len({tuple(column) for column in stirred.T.tolist()}) == len(set(short))
    assert _keys(unmixed(stirred)) == short


def test_a_table_that_grows_block_by_block_keeps_all_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BLOCK_SLOTS", 3)
    high = [((1 << 64) - 1 - number, number) for number in range(20)]
    heads = [head for pair in high for head in pair]
    batches = [_keys(unmixed(words_of(heads[start : start + 5], 1))) for start in range(0, len(heads), 5)]

    _check_is_a_set(WordTable(1, 3), batches, 1)


def _colliding() -> list[int]:
    return [(low << 128) | (middle << 64) | head for low, middle, head in product(range(3), range(3), (0, 7))]


def test_states_with_equal_heads_are_all_kept() -> None:
    keys = _colliding()
    table = WordTable(3, 3)
    wide = words_of([*keys, *keys[::-1], *keys], 3)

    assert sorted(_keys(distinct(wide.copy()))) == sorted(keys)
    assert sum(table.add(words_of([key], 3)).shape[1] for key in keys[:9]) == 9
    assert sorted(_keys(table.add(distinct(wide.copy())))) == sorted(keys[9:])
    assert not table.add(distinct(wide)).shape[1]
    assert words.find(words_of([*keys, 1], 3), distinct(words_of(keys, 3)))[-1] == -1


@given(st.lists(st.integers(0, 30), max_size=20), st.lists(st.integers(0, 30), max_size=20), WIDTHS)
def test_find_returns_the_column_of_each_state(wanted: list[int], there: list[int], width: int) -> None:
    keys = [[(number // 4 << 64 * (width - 1)) | number % 4 for number in numbers] for numbers in (wanted, there)]
    among = distinct(words_of(keys[1], width))
    found = words.find(words_of(keys[0], width), among).tolist()

    for key, column in zip(keys[0], found, strict=True):
        assert (column >= 0) == (key in keys[1])
        assert column < 0 or key_of(among, column) == key


VARIANTS = ["strict+recheck_after_hold=in_lock", "strict-clone+heap_entry=one_shot+tick=free"]


@pytest.mark.parametrize("requests", quick_if([2, 3], lambda requests: requests == 2))
@pytest.mark.parametrize("name", quick_if([*PRESETS, *VARIANTS], lambda name: name == VARIANTS[-1]))
def test_every_token_replays_to_its_violation(name: str, requests: int) -> None:
    """A run that is found with symmetry has the shortest length, and its token replays to the right last state."""
    model = model_named(name, requests=requests)
    plain, folded = explore(model), explore(model, symmetry=True)
    broken = {item.name: item for item in properties_of(model)}

    assert entry_of(plain) == entry_of(folded)
    assert dict(plain.fired) == dict(folded.fired)
    for verdict in (each for each in folded.verdicts if each.token is not None):
        assert verdict.token is not None
        trace = replay(verdict.token)
        item = broken[verdict.name]
        # A step that breaks a property is the last step of the run; the report describes the state before it.
        ends = [values_of(model, step.state) for step in trace.steps[-2:]]
        wanted = 1 if item.kind == "sometimes" else 0
        assert trace.depth == verdict.depth
        assert wanted in [evaluate(item.term, end) for end in ends]


@cache
def _orbits(name: str, queues: int) -> Orbits:
    return orbits_of(specification_of(preset(name), Bounds("three", requests=3, messages=1, queues=queues)), [])


@pytest.mark.parametrize("name", quick_if(PRESETS, lambda name: name == "strict-clone"))
@given(data=st.data())
def test_every_arrangement_has_one_canonical_word(name: str, data: st.DataObject) -> None:
    orbits = _orbits(name, data.draw(st.integers(1, 3)))
    model = orbits.model
    _, state = data.draw(runs(model))
    keys = {orbits.layout.pack(each) for each in _arrangements(model, state)}

    canonical = orbits.canonical(words_of(sorted(keys), orbits.layout.words))
    assert {key_of(canonical, column) for column in range(len(keys))} == {key_of(canonical, 0)}
    assert key_of(canonical, 0) in keys
    assert orbits.sizes(canonical[:, :1])[0] == len(keys)


def _arrangements(model: Model, state: tuple[int, ...]) -> list[tuple[int, ...]]:
    values = values_of(model, state)
    made: list[tuple[int, ...]] = []
    numbers = [permutations(range(count)) for count in (model.bounds.requests, model.bounds.queues)]
    for requests, queues in product(*numbers):
        renaming = Renaming(dict(enumerate(requests)), dict(enumerate(queues)))
        renamed = {
            renaming.name(variable.name): (
                renaming.queues.get(values[variable.name], values[variable.name])
                if variable.numbers_queues
                else values[variable.name]
            )
            for variable in model.variables
        }
        made.append(tuple(renamed[variable.name] for variable in model.variables))
    return made


@pytest.mark.parametrize("symmetry", [False, True], ids=["plain", "symmetry"])
def test_the_packed_engine_counts_several_queues_as_the_python_engine(symmetry: bool) -> None:
    model = specification_of(preset("strict"), Bounds("queues", requests=3, messages=1, queues=2))
    judged = [item for item in properties_of(model) if item.kind == "always"]
    plain = explore(model, judged, engine="python", limit_states=2_000)
    fast = explore(model, judged, symmetry=symmetry, limit_states=2_000)

    assert (plain.distinct_states, plain.depth) == (fast.distinct_states, fast.depth)
    assert dict(plain.fired) == dict(fast.fired)


def test_more_queues_than_can_be_renamed_are_refused() -> None:
    model = specification_of(preset("strict"), Bounds("five", requests=1, messages=1, queues=5))

    with pytest.raises(SymmetryError, match="5 queues have too many renamings; check at most 4 with --symmetry"):
        explore(model, [], symmetry=True, limit_states=10)


def test_symmetry_is_refused_if_requests_differ() -> None:
    """Symmetry reduction is refused for a property of request 0 alone, or an action that only request 1 lacks."""
    model = model_named("strict")
    stated = properties_of(model)[0]
    partial = attrs.evolve(stated, name="first_only", term=model.state.requests[0].copies <= 1)
    lame = attrs.evolve(model, actions=tuple(each for each in model.actions if each.label != "expire(1)"))

    with pytest.raises(SymmetryError, match="first_only distinguishes requests or queues"):
        explore(model, [stated, partial], symmetry=True)
    with pytest.raises(SymmetryError, match="the model distinguishes requests or queues"):
        explore(lame, [stated], symmetry=True)


QUICK_STATES: Final = 5_000
TOGETHER: Final[Mapping[str, Any]] = {"workers": 2, "symmetry": True, "memory_mb": 1}
MODES: Final[Mapping[str, Mapping[str, Any]]] = {
    "python": {"engine": "python"},
    "packed": {},
    "workers": {"workers": 2},
    "three workers": {"workers": 3},
    "symmetry": {"symmetry": True},
    "spill": {"memory_mb": 1},
    "together": TOGETHER,
}


@pytest.fixture
def spilling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "plan_of", lambda *_: Plan(chunk_states=512, stretch_states=4_000, sorted_states=3_000))


def _explored(entry: Entry, options: Mapping[str, Any]) -> Exploration:
    policy = preset(entry.policy)
    return explore(specification_of(policy, named(entry.bounds, policy)), **options)


def _name(entry: Entry) -> str:
    return f"{entry.policy}-{entry.bounds}"


TOGETHER_AT: Final = {"tiny", "capacity"}
OWN: Final = [entry for entry in pinned() if entry.policy == "strict" and entry.distinct_states <= QUICK_STATES]


@pytest.mark.parametrize(
    ("entry", "mode"),
    [
        (entry, mode)
        for entry in OWN
        for mode in ("python", "together")
        if mode == "python" or entry.bounds in TOGETHER_AT
    ],
    ids=lambda each: each if isinstance(each, str) else _name(each),
)
@pytest.mark.usefixtures("spilling")
def test_every_mode_finds_the_pinned_numbers_of_our_policy(entry: Entry, mode: str) -> None:
    assert entry_of(_explored(entry, MODES[mode])) == entry


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("entry", pinned(), ids=_name)
@pytest.mark.usefixtures("spilling")
def test_every_mode_finds_the_pinned_numbers(entry: Entry, mode: str) -> None:
    assert entry_of(_explored(entry, MODES[mode])) == entry


@pytest.mark.parametrize("mode", quick_if(["packed", "workers", "symmetry", "spill"], lambda mode: mode != "symmetry"))
@pytest.mark.usefixtures("spilling")
def test_a_lost_state_changes_the_counts(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one state were lost on its way into the store, every mode would count fewer states."""
    honest = packed_part.Part.take

    def lossy(self: packed_part.Part, words: Words) -> None:
        kept = np.ones(words.shape[1], dtype=bool)
        kept[5:6] = False
        honest(self, words.compress(kept, axis=1))

    monkeypatch.setattr(packed_part.Part, "take", lossy)
    entry = next(each for each in OWN if each.bounds == "tiny")

    assert _explored(entry, MODES[mode]).distinct_states < entry.distinct_states


@pytest.mark.parametrize(
    ("vendor", "family", "flags", "slow"),
    [
        ("AuthenticAMD", "25", "sse2 avx2 avx512f avx512vl", True),
        ("AuthenticAMD", "25", "sse2 avx2", False),
        ("AuthenticAMD", "26", "sse2 avx2 avx512f avx512vl", False),
        ("GenuineIntel", "6", "sse2 avx2 avx512f avx512vl", False),
    ],
)
def test_only_zen_4_sorts_slowly(vendor: str, family: str, flags: str, slow: bool) -> None:
    info = f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: 17\nflags\t\t: {flags}\n"

    assert sorts_slowly(info + "\n" + info) is slow
    assert not sorts_slowly("processor\t: 0\nCPU implementer\t: 0x41\n")


def test_numpy_is_imported_without_the_slow_sort() -> None:
    """The check cannot fail on a processor without AVX-512; the environment is unchanged in any case."""
    text = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nflags\t: avx512f\n"
    script = f"""
import os, pathlib
pathlib.Path.read_text = lambda *_args: {text!r}
import longpoll_spec.engines.packed
from numpy._core._multiarray_umath import __cpu_features__ as features
assert not features.get("X86_V4", features["AVX512_SKX"]), features
assert "{DISABLED}" not in os.environ
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, env={**os.environ, "PYTHONPATH": "spec"})
