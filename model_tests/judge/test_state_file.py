"""A follower that is killed goes on from what it kept, and comes to what it would have come to."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from attrs import evolve
from model_tests.support.broker.raw_client import PATIENCE_S
from model_tests.support.judge.faults import FAULTS
from model_tests.support.judge.histories import (
    LIMITS,
    are_found,
    follow_pieces,
    read_until,
    shown,
    simulated,
    written,
)
from model_tests.support.judge.tiles import plan, simulated_tile, write_meta, write_place

from longpoll_judge.contract.result import Result
from longpoll_judge.errors import CheckpointError
from longpoll_judge.generate import Load
from longpoll_judge.read.growing_history import checksum_before
from longpoll_judge.read.source import find
from longpoll_judge.recording import NoVictimError, Recording
from longpoll_judge.rules.cross_queue import rows_where
from longpoll_judge.run import follow as following
from longpoll_judge.run.follow import Steps, follow
from longpoll_judge.run.incremental.queue_judge import Growing
from longpoll_judge.run.incremental.state_file import STATE_FILE, State, is_begun, read_state, write_state
from longpoll_judge.run.pipeline import judge

LONG = 200
EVENTS = 600
PIECES = 5


def generated(number: int) -> Recording:
    """A history, every other one with a fault."""
    recording = simulated(number, EVENTS)
    names = sorted(FAULTS)
    if number % 2:
        try:
            FAULTS[names[(number // 2) % len(names)]].apply(recording)
        except NoVictimError:
            return simulated(number, EVENTS)
    return recording


def check(number: int, directory: Path) -> Result | None:
    """The same with and without kills, to the last word of evidence; nothing told that the whole does not find.

    None of a history with too few events to be cut, or of a format that is left unread.
    """
    recording = generated(number)
    history = written(recording, directory / "history")
    if len(recording.events) < PIECES or not find([history]).splits:
        return None
    whole = judge([history], engine="local")
    plain = follow_pieces(history, PIECES, number)
    killed = follow_pieces(history, PIECES, number, kept=directory / STATE_FILE)

    assert shown(killed.last) == shown(plain.last)
    assert killed.last.findings == plain.last.findings
    assert killed.told == plain.told
    # A clock that is set back later leaves nothing certain of what was told before.
    assert any(gap["kind"] == "clock jump" for gap in whole.gaps) or are_found(plain.told, whole)
    return whole


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_follower_that_is_killed_comes_to_the_same(number: int, tmp_path: Path) -> None:
    """Killed after each of its pieces."""
    check(number, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_two_hundred_histories_come_to_the_same(tmp_path: Path) -> None:
    """Half of them with a fault, of each kind there is."""
    found: list[Result | None] = []
    for number in range(LONG):
        (tmp_path / str(number)).mkdir()
        found.append(check(number, tmp_path / str(number)))

    assert sum(whole is not None and whole.verdict == "valid" for whole in found) >= LONG // 2
    assert sum(whole is not None and whole.verdict == "invalid" for whole in found) > LONG // 4


def state_of(directory: Path) -> Path:
    """A file of what was judged of a history."""
    history = written(simulated(1, EVENTS), directory / "history")
    follow_pieces(history, 2, 1, kept=directory / STATE_FILE)
    return directory / STATE_FILE


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    """A byte that is not as it was, a file cut off, another version or other thresholds; and what helps is said."""
    file = state_of(tmp_path)
    whole = file.read_bytes()
    damaged = [whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1]), b"", b"longpoll judging 99\n" + whole]
    for content in damaged:
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match="remove it, and all of the history is judged again"):
            Steps.begun(LIMITS, file)
    file.write_bytes(whole)
    with pytest.raises(CheckpointError, match="other thresholds"):
        read_state(file, Growing(1.0, 2.0))

    assert Steps.begun(LIMITS, file).growing.survey.event_count > 0


def test_a_part_that_was_written_anew_is_refused(tmp_path: Path) -> None:
    directory = written(simulated(1, EVENTS), tmp_path / "history")
    part = directory / "part-0.ndjson"
    end = part.stat().st_size
    write_state(tmp_path / STATE_FILE, State(Growing(100.0, 50.0), {str(part): (end, checksum_before(str(part), end))}))
    read_state(tmp_path / STATE_FILE, Growing(100.0, 50.0))
    part.write_bytes(part.read_bytes().replace(b'"sequence":', b'"sequencE":'))
    with pytest.raises(CheckpointError, match=r"has changed since it was judged; remove .*judging.state"):
        read_state(tmp_path / STATE_FILE, Growing(100.0, 50.0))
    part.unlink()

    assert read_state(tmp_path / STATE_FILE, Growing(100.0, 50.0)) is not None


def test_a_part_that_is_written_anew_while_it_is_kept_is_refused_later(tmp_path: Path) -> None:
    part, kept = tmp_path / "part-0.ndjson", tmp_path / STATE_FILE
    part.write_bytes(b"one\ntwo\n")
    steps = Steps.begun(LIMITS, kept)
    steps.ends[str(part)] = part.stat().st_size
    steps.keep(is_last=True)
    assert Steps.begun(LIMITS, kept).ends == steps.ends
    part.write_bytes(b"one\nTWO\n")
    steps.keep(is_last=True)
    with pytest.raises(CheckpointError, match="has changed since it was judged"):
        Steps.begun(LIMITS, kept)


def test_what_is_kept_is_there_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the middle of writing the file is the one before."""
    file = state_of(tmp_path)
    before = file.read_bytes()
    monkeypatch.setattr("os.fsync", lambda _descriptor: (_ for _ in ()).throw(OSError("killed")))
    with pytest.raises(OSError, match="killed"):
        write_state(file, State(Growing(100.0, 50.0)))

    assert file.read_bytes() == before


def test_a_start_reads_on_where_the_last_one_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No byte that was judged is read again, and the last word is that of the whole."""
    monkeypatch.setattr(following, "WHOLE_EVENTS", 0)
    # However slow the machine is, it is told once of all that has come.
    monkeypatch.setattr(following, "TELL_S", PATIENCE_S)
    directory = written(simulated(2, EVENTS), tmp_path / "history")
    part = directory / "part-0.ndjson"
    lines = part.read_bytes().splitlines(keepends=True)
    told: list[int] = []

    def run(content: bytes) -> Result:
        part.write_bytes(content)
        waits = iter([False, True])
        return follow(
            [directory],
            engine="local",
            master=None,
            wake_ms=100,
            late_ms=50,
            tell=lambda result: told.append(result.events),
            stops=lambda _seconds: next(waits, True),
            kept=tmp_path / STATE_FILE,
        )

    run(b"".join(lines[:300]))
    begun = len(told)
    ends = Steps.begun(LIMITS, tmp_path / STATE_FILE).ends
    last = run(b"".join(lines))

    assert ends == {str(part): len(b"".join(lines[:300]))}
    assert told[begun:] == [len(lines)]
    assert (last.verdict, last.events) == ("valid", len(lines))


def run_until(
    command: list[str], parts: list[Path], history: Path, kept: Path, events: int
) -> tuple[int, bytes, bytes]:
    """Follow a history that has some more parts up to an event, and kill, or end when all have come; what was said."""
    is_last = not any(each not in parts for each in parts[0].parent.iterdir())
    for part in parts:
        part.rename(history / part.name)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stderr is not None
        said = read_until(running.stderr.fileno(), f"up to event {events}".encode())
        while not ((kept / STATE_FILE).exists() or is_begun(kept / STATE_FILE)):
            assert running.poll() is None, said
            select.select([], [], [], 0.05)
        running.send_signal(signal.SIGTERM if is_last else signal.SIGKILL)
        out, _errors = running.communicate(timeout=PATIENCE_S)
    return running.returncode, out, said


@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(
    "engine", ["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.xdist_group("spark")])]
)
def test_a_process_that_is_killed_tells_each_finding_once(engine: str, tmp_path: Path) -> None:
    """SIGKILL in the middle of a long history, twice; each fault is in the file once, as the whole has it."""
    made, history = tmp_path / "made", tmp_path / "history"
    history.mkdir()
    tile = simulated_tile(Load(events=120_000))
    write_meta(history)
    made.mkdir()
    table = tile.table
    row = int(np.flatnonzero(rows_where(table, "answer_sent"))[1_000])
    told = table["offset_next"].to_numpy().copy()
    told[row] += 1_000_000
    at = table.schema.get_field_index("offset_next")
    wrong = evolve(tile, table=table.set_column(at, "offset_next", pa.array(told, pa.int64())))
    places = plan([tile, wrong], 6, changed={1: 1, 3: 1, 5: 1})
    counts = np.cumsum([write_place(made, (tile, wrong)[place.tile], place) for place in places]).tolist()
    parts = sorted(made.iterdir())
    found, kept = tmp_path / "found.ndjson", tmp_path / "kept"
    command = [sys.executable, "-m", "longpoll", "judge", str(history), "--engine", engine, "--follow", "--json"]
    command += ["--findings", str(found), "--checkpoint", str(kept)]
    (killed, _out, _said), (again, _out, said), (ended, out, _said) = [
        run_until(command, parts[place : place + 2], history, kept, counts[place + 1]) for place in (0, 2, 4)
    ]
    names = [json.loads(line)["id"] for line in found.read_bytes().splitlines()]
    whole = judge([history], engine="local")

    assert (killed, again, ended) == (-signal.SIGKILL, -signal.SIGKILL, 1)
    assert len(names) == 3
    assert sorted(names) == sorted(one.id for one in whole.findings)
    assert sorted(names) == sorted(one["id"] for one in json.loads(out)["findings"])
    assert f"up to event {counts[1]}".encode() not in said
