"""The vectors as other programs read them: every one, with nothing left to know, and the same archive each time."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import longpoll
from longpoll.cli import main
from longpoll_conform.clauses import BY_ID, CAPABILITIES
from longpoll_conform.compare import differences
from longpoll_conform.export import (
    BEGIN,
    FORMAT,
    RUN,
    SCAN,
    SET,
    SILENCE,
    SOME,
    archive,
    files,
    flat,
    pattern_of,
    seen,
    shipped,
)
from longpoll_conform.vectors import RECORDED, RECORDED_AS, Vector, recorded
from longpoll_conform.wire import decode_command

VECTORS = tuple(vector for version in RECORDED for vector in recorded(version))
VERBS = {"ask", "answer", "after", "sleepMs", "until", "close", "pushes"}


def texts(value: Any) -> Iterator[str]:
    """Every text in any JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)


def content(piece: dict[str, Any]) -> bytes:
    """A piece's bytes, with a run in them; numbers of a header as texts, which is all that our reader takes."""
    named = str(piece.get("text", "")).replace(RUN, "abcdef")
    named = re.sub(
        r'(?<="extFields": \{).*?\}', lambda found: re.sub(r": (\d+|true|false)(?=[,}])", r': "\1"', found[0]), named
    )
    return (named.encode() + bytes.fromhex(piece.get("hex", ""))) * int(piece.get("times", 1))


@cache
def all_steps() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The shipped steps of every vector, by version and id."""
    return {(vector.version, vector.id): shipped(vector)["steps"] for vector in VECTORS}


def steps_of(vector: Vector) -> list[dict[str, Any]]:
    return all_steps()[vector.version, vector.id]


def steps(vector: Vector, verb: str) -> list[dict[str, Any]]:
    """Its steps of one kind."""
    return [step for step in steps_of(vector) if verb in step]


@pytest.mark.parametrize("version", RECORDED)
def test_every_vector_is_shipped(version: str) -> None:
    """With its clause, in the order of the recordings; JSON a line."""
    lines = [json.loads(line) for line in files("1")[f"rocketmq-{version}.jsonl"].splitlines()]

    assert [line["id"] for line in lines] == [vector.id for vector in recorded(version)]
    assert {line["format"] for line in lines} == {FORMAT}
    for line in lines:
        assert line["id"] in BY_ID[line["clause"]].vectors
        assert {name.removeprefix("!") for name in line["when"]} <= {*CAPABILITIES, SCAN}


def test_a_step_is_one_thing_and_what_is_asked_is_answered() -> None:
    """One verb a step; an answer is waited for once, of what was asked before, and the request's always."""
    for vector in VECTORS:
        asked: list[str] = []
        answered: list[str] = []
        for step in steps_of(vector):
            assert len(VERBS & set(step)) == 1, step
            asked += [step["ask"]] if "ask" in step else []
            answered += [step["answer"]] if "answer" in step else []
            assert set(answered) <= set(asked)
        assert len(set(asked)) == len(asked)
        assert len(set(answered)) == len(answered)
        assert "request" in answered


def test_every_variable_is_known_when_it_is_used() -> None:
    """From the begin, or saved by an answer before."""
    for vector in VECTORS:
        known = {"run", "brokerName", "cluster"}
        for step in steps_of(vector):
            used = {
                name for text in texts({**step, "meant": None}) for name in re.findall(r"\$\{(\w+)(?:[+-]\d+)?\}", text)
            }
            assert used <= known, (vector.id, step)
            known |= set(step.get("save", ()))


def test_names_are_of_a_run() -> None:
    """Each topic and group of a vector has the run in it, wherever it is named."""
    for vector in VECTORS:
        whole = json.dumps(steps_of(vector), ensure_ascii=False)
        whole += "".join(bytes.fromhex(text).decode("latin-1") for text in re.findall(r'"hex": "([0-9a-f]*)"', whole))
        assert not re.search(r"(?<![A-Za-z0-9])[tg]c\d{3}(?!" + re.escape(RUN) + ")", whole), vector.id


def test_frames_are_what_they_mean() -> None:
    """Header and body put together as the page says can be read, and say the code, the fields and the opaque."""
    for vector in VECTORS:
        for step in steps(vector, "header"):
            header, body = content(step["header"]), b"".join(map(content, step["body"]))
            mark = step["header"].get("kind", 0) << 24 | len(header)
            read = decode_command(mark.to_bytes(4) + header + body)

            assert (read["code"], read["opaque"]) == (step["meant"]["code"], step["opaque"])
            assert read["serialize"] == step["meant"]["serialize"]
            assert (read["extFields"] or {}).keys() == (step["meant"]["extFields"] or {}).keys()


def test_a_recorded_answer_fits_its_pattern_and_another_does_not() -> None:
    """Of each vector; and of an answer whose code, flag, fields or messages are others something differs."""
    for vector in VECTORS:
        answer = vector.case["response"]
        vary = frozenset(vector.case.get("normalised", ()))
        pattern = pattern_of(answer, vary, RECORDED_AS)
        if not answer or "closed" in answer:
            assert list(differences("", pattern, {"code": 0}, RECORDED_AS))
            continue
        good = seen(answer)
        assert list(differences("", pattern, good, RECORDED_AS)) == []
        bad = [SILENCE, {"closed": True}, {**good, "code": 99}, {**good, "flag": 0}]
        bad += [{**good, "extFields": {**good["extFields"], "more": "1"}}]
        bad += [] if "body" in vary else [{**good, "body": {"hex": "00"}}]
        for each in bad:
            assert list(differences("", pattern, each, RECORDED_AS)), vector.id


def test_a_length_counts_the_names_of_a_run() -> None:
    """A body that names its topic is six bytes longer where a run is six letters."""
    vector = next(vector for vector in VECTORS if vector.id == "pull-010")
    (answer,) = (step for step in steps(vector, "answer") if step["answer"] == "request")

    for number in range(int(answer["expect"]["records.#"])):
        body = answer["expect"][f"records.{number}.body"]
        assert RUN in body
        assert answer["expect"][f"records.{number}.bodyLength"] == str(len(body.replace(RUN, "abcdef")))


def test_places_say_what_a_pattern_says() -> None:
    """Counts where nothing more may be there, lists in any order sorted, texts as they are and the rest as JSON."""
    pattern = {
        SOME: {"code": 0, "extFields": {"a": "1"}, "body": {"json": {"all": {SET: [{"b": 2}, {"b": 1}]}, "is": True}}}
    }
    begin = {SOME: {"body": {"records": {BEGIN: [{SOME: {"topic": "t"}}]}}}}

    assert flat(pattern) == {
        "code": "0", "extFields.#": "1", "extFields.a": "1", "json.#": "2", "json.is": "true", "json.all.#": "2",
        "json.all.0.#": "1", "json.all.0.b": "1", "json.all.1.#": "1", "json.all.1.b": "2",
    }  # fmt: skip
    assert flat(begin) == {"records.0.topic": "t"}
    assert flat(SILENCE) == {"silence": "true"}


def test_lists_of_json_can_be_sorted_before_names_are_known() -> None:
    """An item with a variable is alone in its list, or follows its distinguishing field."""
    for vector in VECTORS:
        for step in steps(vector, "expect"):
            lists = [
                place
                for place, text in step["expect"].items()
                if place.startswith("json.") and place.endswith(".#") and text != "1"
            ]
            names = {place.removesuffix(".#") for place in lists}
            varied = {
                place
                for place, text in step["expect"].items()
                for name in names
                if place.startswith(f"{name}.1.") and "<" in text
            }
            assert not varied, vector.id


def test_the_command_writes_what_the_archive_has(tmp_path: Path) -> None:
    """The same files; the archive is the same bytes at every building, and the page names every capability."""
    done = CliRunner().invoke(main, ["conform", "--export", str(tmp_path / "vectors"), "--json"])
    name, content = archive(longpoll.__version__)
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        packed = {
            Path(entry.name).name: (tar.extractfile(entry) or io.BytesIO()).read().decode()
            for entry in tar.getmembers()
        }

    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["written"] == [str(tmp_path / "vectors" / file) for file in packed]
    assert {path.name: path.read_text() for path in (tmp_path / "vectors").iterdir()} == packed
    assert name == f"longpoll-vectors-{longpoll.__version__}.tar.gz"
    assert archive(longpoll.__version__) == (name, content)
    assert all(f"| `{capability}` |" in packed["README.md"] for capability in CAPABILITIES)
    assert f"number {FORMAT};" in packed["README.md"]


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(main, ["conform", "--export", str(tmp_path / "file" / "below")])

    assert done.exit_code == 2
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.output
