"""The command records a broker's answers as vectors, which the broker passes and a faulty broker fails."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from model_tests.conform.relay import Asked, Relay, Told, field_of, plus

from longpoll.cli import main
from longpoll_broker.broker import Broker
from longpoll_conform.connection import Address
from longpoll_conform.export import shipped
from longpoll_conform.known_failures import chosen
from longpoll_conform.play import Place, Played, play
from longpoll_conform.vectors import Vector, VectorError, read_vectors, recorded, write_vectors
from longpoll_spec.errors import UserError

LATE_S = 1.5
"""A delay in seconds that is longer than the time window of any prompt answer."""
SIZE_SMALL = 1 << 18
"""The largest file of recordings in these tests, bytes."""
pytestmark = pytest.mark.xdist_group("record")  # Recording takes long, so it is done once.
SOME = ("PULL-READ-2", "PULL-CHECK-1*", "PULL-WAKE-1", "CLIENT-2", "LOCK-1", "ROUTE-1", "SEND-1", "OFFSET-8", "FRAME-1")


def conform(broker: Address, rocketmq: Broker, *words: str, only: tuple[str, ...] = SOME) -> Result:
    places = [f"--broker={broker[0]}:{broker[1]}", "--name-server={}:{}".format(*rocketmq.name_server_address)]
    chosen = [f"--only={name}" for name in only]
    usual = ["--policy=rocketmq-4.9", "--has=long-polling", "--json"]
    return CliRunner().invoke(main, ["conform", *places, *usual, *chosen, *words])


@pytest.fixture(scope="module")
def mine(rocketmq: Broker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mine") / "mine.jsonl"
    done = conform(rocketmq.address, rocketmq, f"--record={path}")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["unsteady"] == {}
    assert json.loads(done.stdout)["recorded"] == len(read_vectors(path)) >= 12
    return path


def test_a_broker_passes_its_own_recording(mine: Path, rocketmq: Broker) -> None:
    done = conform(rocketmq.address, rocketmq, f"--vectors={mine}")
    told = json.loads(done.stdout)

    assert done.exit_code == 0, done.output
    assert {each["outcome"] for each in told["results"]} == {"PASS"}
    assert len(told["results"]) == len(read_vectors(mine))


def test_a_recording_of_our_broker_equals_one_of_java(mine: Path) -> None:
    """Questions, masks, time windows and patterns equal those of Java's recording, except for the broker's name."""
    java = {vector.id: shipped(vector) for vector in recorded("4.9.7")}
    ours = [shipped(vector) for vector in read_vectors(mine)]

    assert ours == [{**java[line["id"]], "recorded": "mine"} for line in ours]


@pytest.mark.parametrize(
    "fault",
    [field_of(11, "maxOffset", plus(1)), pytest.param(field_of(310, "queueOffset", plus(1)), marks=pytest.mark.long)],
    ids=["end of a queue", "place of a send"],
)
def test_a_fault_fails_the_recording(fault: Any, mine: Path, rocketmq: Broker) -> None:
    with Relay(rocketmq.address, fault) as relay:
        done = conform(relay.address, rocketmq, f"--vectors={mine}", only=("PULL-READ-2", "SEND-1"))

    assert done.exit_code == 1
    assert json.loads(done.stdout)["counts"]["FAIL"]


def test_a_broker_with_a_fault_records_the_fault(rocketmq: Broker, tmp_path: Path) -> None:
    with Relay(rocketmq.address, field_of(11, "maxOffset", plus(1))) as relay:
        done = conform(relay.address, rocketmq, f"--record={tmp_path / 'bad.jsonl'}", only=("pull-010",))
    (vector,) = read_vectors(tmp_path / "bad.jsonl")

    assert done.exit_code == 0
    assert vector.case["response"]["extFields"]["maxOffset"] == "11"


def test_a_question_with_a_late_answer_is_repeated(rocketmq: Broker, tmp_path: Path) -> None:
    """The relay delays two answers to the question, and the recording still keeps the question's time window."""
    late = iter([LATE_S, LATE_S])

    def slow(asked: Asked, _answer: dict[str, Any], content: bytes) -> Told | None:
        is_the_question = asked.command["extFields"].get("maxMsgNums") == "10"
        return [(delay_s, content)] if is_the_question and (delay_s := next(late, 0.0)) else None

    with Relay(rocketmq.address, slow) as relay:
        done = conform(relay.address, rocketmq, f"--record={tmp_path / 'late.jsonl'}", only=("pull-010",))
    (vector,) = read_vectors(tmp_path / "late.jsonl")
    (question,) = [each for each in recorded("4.9.7") if each.id == "pull-010"]

    assert done.exit_code == 0, done.output
    assert relay.spoiled == 2
    assert vector.case["timing"] == question.case["timing"]


@pytest.mark.parametrize("has_name", [True, False], ids=["a window of none", "no window"])
def test_a_question_without_a_window_is_asked_twice(
    has_name: bool, rocketmq: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recording's time window comes from the time that the broker took to answer."""
    (question,) = [each for each in recorded("4.9.7") if each.id == "frame-472"]
    assert question.case["timing"] is None
    case = {name: value for name, value in question.case.items() if has_name or name != "timing"}
    write_vectors(tmp_path / "questions.jsonl", [Vector("frame-472", question.title, "default", "4.9.7", case)])
    asked: list[str] = []

    def counted(vector: Vector, place: Place) -> Played:
        asked.append(vector.id)
        return play(vector, place)

    monkeypatch.setattr("longpoll_conform.record.play", counted)
    # With a prompt window of a minute, every answer is prompt on any machine.
    monkeypatch.setattr("longpoll_conform.record.PROMPT_MS", 60_000)
    words = f"--vectors={tmp_path / 'questions.jsonl'}", f"--record={tmp_path / 'mine.jsonl'}"
    done = conform(rocketmq.address, rocketmq, *words, only=("frame-472",))
    (vector,) = read_vectors(tmp_path / "mine.jsonl")

    assert done.exit_code == 0, done.output
    assert asked == ["frame-472"] * 2
    assert vector.case["timing"]["kind"] == "seen"


def test_a_question_with_two_different_answers_is_not_recorded(rocketmq: Broker, tmp_path: Path) -> None:
    count = iter(range(1, 1000))
    with Relay(rocketmq.address, field_of(11, "maxOffset", lambda text: str(int(text) + next(count)))) as relay:
        done = conform(relay.address, rocketmq, f"--record={tmp_path / 'odd.jsonl'}", only=("pull-010", "lock-358"))

    assert done.exit_code == 1
    assert list(json.loads(done.stdout)["unsteady"]) == ["pull-010"]
    assert [vector.id for vector in read_vectors(tmp_path / "odd.jsonl")] == ["lock-358"]


def test_a_file_is_written_and_read(tmp_path: Path) -> None:
    for name in ("all.jsonl", "all.jsonl.xz"):
        write_vectors(tmp_path / name, recorded("5.5.0"))
        assert read_vectors(tmp_path / name) == recorded("5.5.0")


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"id": 1}', '{"id": 1, "title": "", "profile": "", "request": []}', "\x00"]
)
def test_an_invalid_recording_is_reported_in_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "some.jsonl").write_text(text)
    with pytest.raises(VectorError, match="is not a file of recordings"):
        read_vectors(tmp_path / "some.jsonl")


def test_a_question_without_a_clause_is_reported_in_one_sentence(rocketmq: Broker, tmp_path: Path) -> None:
    vector = recorded("4.9.7")[0]
    case = {**vector.case, "id": "other-1"}
    write_vectors(tmp_path / "other.jsonl", [Vector("other-1", vector.title, vector.profile, "other", case)])
    done = conform(rocketmq.address, rocketmq, f"--vectors={tmp_path / 'other.jsonl'}")

    assert done.exit_code == 2
    assert "other-1 is not a vector of any clause" in done.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\xff", "is not a file of recordings"),
        (b"[]\n", "is not a file of recordings"),
        (b"[" * 100_000, "is not a file of recordings"),
        (b'{"id": "lock-352", "title": "", "profile": "default", "request": {}}\n' * 2, "has an id twice"),
        (b" " * (SIZE_SMALL + 1), "is larger than"),
    ],
    ids=["empty", "no text", "a list", "deep", "twice", "large"],
)
def test_an_invalid_file_of_recordings_is_reported_in_one_sentence(
    content: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compressed file that expands beyond the limit is refused too."""
    monkeypatch.setattr("longpoll_conform.vectors.SIZE_MAX", SIZE_SMALL)
    for name, written in (("plain.jsonl", content), ("packed.jsonl.xz", lzma.compress(content, preset=0))):
        (tmp_path / name).write_bytes(written)
        with pytest.raises(VectorError, match=said):
            read_vectors(tmp_path / name)


def test_an_endless_device_is_refused() -> None:
    with pytest.raises(VectorError, match="is larger than"):
        read_vectors(Path("/dev/zero"))


def test_an_unknown_profile_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "odd.jsonl").write_text('{"id": "lock-352", "title": "", "profile": "nope", "request": {"code": 41}}\n')
    with pytest.raises(UserError, match="lock-352: unknown profile 'nope'"):
        chosen("strict", (), (), read_vectors(tmp_path / "odd.jsonl"))
