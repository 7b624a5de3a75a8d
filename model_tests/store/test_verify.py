"""`longpoll store verify` and `store show`: detected problems, their names, the output and the exit codes."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from model_tests.store.test_maps import mapped_count
from model_tests.support.broker.plain.plain_store import read_log
from model_tests.support.broker.stores import message, mixed_messages, open_store, put_and_dispatch
from model_tests.support.examples import fewer

from longpoll.cli import main
from longpoll_broker.errors import StoreUserError
from longpoll_broker.store import verify
from longpoll_broker.store.inspect import StoreDirectory
from longpoll_protocol.log_record import SCHEDULE_TOPIC
from longpoll_runtime.files import RealFiles, RealMappedFile

LOG = f"commitlog/{2048:020d}"
QUEUE = f"consumequeue/Orders/1/{0:020d}"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small closed store of several log files and queues, which tests must not change."""
    directory = tmp_path_factory.mktemp("sound") / "store"
    store = open_store(directory)
    put_and_dispatch(store, mixed_messages(60))
    store.close()
    assert verify.verify(RealFiles(), str(directory)).problems == []
    return directory


def damaged(sound: Path, directory: Path, name: str, change: Callable[[bytearray], object]) -> str:
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(sound, directory)
    content = bytearray((directory / name).read_bytes())
    change(content)
    (directory / name).write_bytes(content)
    return str(directory)


def flip(offset: int) -> Callable[[bytearray], object]:
    return lambda content: content.__setitem__(offset, content[offset] ^ 0x55)


def record_starts(sound: Path) -> list[int]:
    records = read_log(sound)["records"]
    return [each["physicalOffset"] - 2048 for each in records if 2048 <= each["physicalOffset"] < 4096]


@pytest.mark.parametrize(
    "field", ["size", "magic", "crc", "queue id", "queue offset", "physical offset", "body", "topic", "tag"]
)
def test_a_flip_in_a_record_is_found(sound: Path, tmp_path: Path, field: str) -> None:
    start = record_starts(sound)[2]
    content = (sound / LOG).read_bytes()
    record = next(each for each in read_log(sound)["records"] if each["physicalOffset"] == 2048 + start)
    places = {
        "size": 3, "magic": 6, "crc": 9, "queue id": 15, "queue offset": 27, "physical offset": 35,
        "body": content.index(b"Orders", start) - start - 3, "topic": content.index(b"Orders", start) - start,
        "tag": content.index(b"TAGS\x01", start) - start + 5,
    }  # fmt: skip
    assert record["properties"]["TAGS"]
    directory = damaged(sound, tmp_path / "store", LOG, flip(start + places[field]))
    verdict = verify.verify(RealFiles(), directory)
    assert verdict.is_damaged
    unit = (record["queueOffset"] * 20, record["totalSize"])
    named = {(problem.file, problem.offset) for problem in verdict.problems}
    in_log = {(LOG, offset) for offset in range(start, start + record["totalSize"])}
    queue = f"consumequeue/Orders/{record['queueId']}/{unit[0] // 200 * 200:020d}"
    in_queue = {(queue, offset) for offset in range(unit[0] % 200, unit[0] % 200 + 20)}
    assert named & (in_log | in_queue), (named, start)


@pytest.mark.parametrize("offset", [0, 7, 8, 11, 12, 19])
def test_a_flip_in_a_unit_is_found(sound: Path, tmp_path: Path, offset: int) -> None:
    verdict = verify.verify(RealFiles(), damaged(sound, tmp_path / "store", QUEUE, flip(40 + offset)))
    assert verdict.is_damaged
    assert any(problem.file == QUEUE and 40 <= problem.offset < 60 for problem in verdict.problems), verdict.problems


@fewer(2)
@given(data=st.data())
def test_flips_in_bodies_are_found(sound: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    records = [record for record in read_log(sound)["records"] if record["bodyLength"]]
    record = data.draw(st.sampled_from(records))
    start = record["physicalOffset"]
    fixed = 48 + 8 + 8 + 8 + 12 + 4 + 12 * (bool(record["sysFlag"] & 0x10) + bool(record["sysFlag"] & 0x20))
    place = start % 2048 + fixed + data.draw(st.integers(0, record["bodyLength"] - 1))
    name = f"commitlog/{start // 2048 * 2048:020d}"
    bit = data.draw(st.integers(0, 7))

    def change(content: bytearray) -> None:
        content[place] ^= 1 << bit

    verdict = verify.verify(RealFiles(), damaged(sound, tmp_path_factory.mktemp("flip") / "store", name, change))
    assert verdict.is_damaged
    assert any(problem.file == name and problem.offset == start % 2048 + 8 for problem in verdict.problems)


@fewer(2)
@given(data=st.data())
def test_verify_never_crashes_on_damaged_files(
    sound: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Verification of flipped, overwritten, truncated and empty files gives a verdict and no traceback."""
    directory = tmp_path_factory.mktemp("any") / "store"
    shutil.copytree(sound, directory)
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    for _ in range(data.draw(st.integers(1, 4))):
        path = data.draw(st.sampled_from(paths))
        content = bytearray(path.read_bytes())
        start = data.draw(st.integers(0, len(content)))
        if data.draw(st.booleans()):
            content[start : start + 8] = data.draw(st.binary(max_size=8))
        else:
            del content[start:]
        path.write_bytes(content)
    result = run("verify", str(directory), "--json")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code in {0, 1, 2}
    assert result.exit_code == 2 or json.loads(result.stdout)


def test_a_cut_file_is_named(sound: Path, tmp_path: Path) -> None:
    """The report names the truncated file and still counts the records of later files."""
    before = verify.verify(RealFiles(), str(sound)).messages
    directory = damaged(sound, tmp_path / "store", LOG, lambda content: content.__delitem__(slice(1000, None)))
    verdict = verify.verify(RealFiles(), directory)
    assert (LOG, 1000) in {(problem.file, problem.offset) for problem in verdict.problems if problem.kind == "damage"}
    assert before - 15 < verdict.messages < before


def test_a_missing_file_is_named(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "store")
    (tmp_path / "store" / LOG).unlink()
    verdict = verify.verify(RealFiles(), str(tmp_path / "store"))
    assert any(f"{2048:020d}" in problem.expected for problem in verdict.problems if problem.kind == "damage")


def test_a_deleted_topic_is_not_damage(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_and_dispatch(store, [*mixed_messages(30), message("Other")])
    store.delete_topic("Orders")
    store.close()
    assert verify.verify(RealFiles(), str(tmp_path)).problems == []
    store = open_store(tmp_path)
    put_and_dispatch(store, [message("Orders", 1)])
    assert store.visible_end("Orders", 1) == 1
    store.close()
    verdict = verify.verify(RealFiles(), str(tmp_path))
    assert (verdict.problems, verdict.messages) == ([], 32)


@pytest.mark.parametrize(
    ("topic", "late_ms", "is_sound"),
    [
        (SCHEDULE_TOPIC, 7_000, True),
        (SCHEDULE_TOPIC, 0, True),
        (SCHEDULE_TOPIC, 7_001, False),
        (SCHEDULE_TOPIC, 6_500, False),
        (SCHEDULE_TOPIC, -1_000, False),
        ("Orders", 7_000, False),
    ],
)
def test_a_delayed_message_is_due_at_whole_seconds(tmp_path: Path, topic: str, late_ms: int, is_sound: bool) -> None:
    """Verification accepts a time as tags code only for a delayed message, with any delay level."""
    store = open_store(tmp_path)
    put_and_dispatch(store, [message(topic, properties={"DELAY": "1", "REAL_TOPIC": "T"})])
    (record,) = read_log(tmp_path)["records"]
    store.close()
    path = tmp_path / "consumequeue" / topic / "0" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    struct.pack_into(">q", content, 12, record["storeTimestamp"] + late_ms)
    path.write_bytes(content)
    verdict = verify.verify(RealFiles(), str(tmp_path))
    assert verdict.is_damaged != is_sound, verdict.problems


def verdict_with(directory: Path, maps_max: int) -> tuple[verify.Verdict, int]:
    """Returns the verdict of `verify` under a limit of memory maps, and the most maps that the process had at once."""
    seen: list[int] = []
    map_file = RealFiles.map

    def counted(files: RealFiles, path: str, size: int, *, writable: bool, create: bool = False) -> RealMappedFile:
        mapped = map_file(files, path, size, writable=writable, create=create)
        seen.append(mapped_count(directory))
        return mapped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RealFiles, "map", counted)
        store = StoreDirectory(RealFiles(), str(directory), maps_max)
        with closing(store):
            found = verify._Verifier(store, lambda _size: None).run()
    return found, max(seen)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_store_may_have_more_files_than_maps(sound: Path, tmp_path: Path, is_damaged: bool) -> None:
    directory = tmp_path / "store"
    shutil.copytree(sound, directory)
    if is_damaged:
        damaged(sound, directory, QUEUE, flip(7))
    many, most = verdict_with(directory, 1024)
    few, least = verdict_with(directory, 2)
    assert (few.problems, few.queues, few.messages) == (many.problems, many.queues, many.messages)
    assert bool(few.problems) is is_damaged
    # A new map is created before an old map is released, and the log's reader has one more map.
    assert least <= 4
    assert most > 4


def test_a_file_deleted_during_verification_is_a_usage_error(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "store")
    found = StoreDirectory(RealFiles(), str(tmp_path / "store"), 1)
    (tmp_path / "store" / QUEUE).unlink()
    with pytest.raises(StoreUserError, match=f"{QUEUE} cannot be read"):
        verify._Verifier(found, lambda _size: None).run()


def test_exit_codes_and_shape(sound: Path, tmp_path: Path) -> None:
    """A sound store and a torn tail give exit code 0, damage 1, and a missing store 2."""
    run = CliRunner().invoke
    clean = run(main, ["store", "verify", str(sound), "--json"])
    keys = ["cut", "lackingSectors", "messages", "problems", "queues", "unread"]
    assert (clean.exit_code, sorted(json.loads(clean.stdout))) == (0, keys)
    broken = damaged(sound, tmp_path / "store", LOG, flip(100))
    result = run(main, ["store", "verify", broken, "--json"])
    assert result.exit_code == 1
    problems = json.loads(result.stdout)["problems"]
    assert all(sorted(problem) == ["expected", "file", "found", "kind", "offset"] for problem in problems)
    last = max(path.name for path in (sound / "commitlog").iterdir())
    torn = damaged(sound, tmp_path / "torn", f"commitlog/{last}", lambda content: content.__setitem__(-300, 1))
    (Path(torn) / "abort").touch()
    result = run(main, ["store", "verify", torn, "--json"])
    assert (result.exit_code, [each["kind"] for each in json.loads(result.stdout)["problems"]]) == (0, ["tail"])
    assert run(main, ["store", "verify", str(tmp_path / "nothing")]).exit_code == 2
    human = run(main, ["store", "verify", broken])
    assert (human.exit_code, "damage" in human.stdout) == (1, True)


@pytest.fixture
def directory(tmp_path: Path) -> str:
    store = open_store(tmp_path / "store")
    put_and_dispatch(store, mixed_messages(40))
    store.close()
    return str(tmp_path / "store")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["store", *arguments])


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_usage_errors_of_verify_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for target in (tmp_path / "none", tmp_path, tmp_path / "file"):
        result = run("verify", str(target), "--json")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("longpoll: ")


def test_an_open_store_can_be_read(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_and_dispatch(store, mixed_messages(5))
    store.put(message("Orders", 1))
    result = run("verify", str(tmp_path), "--json")
    verdict = json.loads(result.stdout)
    assert (result.exit_code, verdict["messages"]) == (0, 6)
    assert [problem["kind"] for problem in verdict["problems"]] == ["tail"]
    store.close()
    assert json.loads(run("verify", str(tmp_path), "--json").stdout)["problems"] == []
