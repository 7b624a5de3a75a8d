"""The vectors as other programs read them: every one, with nothing left to know, and the same archive each time."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import longpoll
from longpoll.cli import main
from longpoll_conform.clauses import BY_ID, CAPABILITIES
from longpoll_conform.compare import differences
from longpoll_conform.shipped.archive import archive, files
from longpoll_conform.shipped.patterns import SILENCE, SOME, pattern_of, seen
from longpoll_conform.shipped.steps import FORMAT, RUN, SCAN, shipped
from longpoll_conform.vectors import RECORDED, RECORDED_AS, Vector, recorded

VECTORS = tuple(vector for version in RECORDED for vector in recorded(version))
VERBS = {"ask", "answer", "after", "sleep_ms", "until", "close", "pushes"}


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


def steps(vector: Vector, verb: str) -> list[dict[str, Any]]:
    """Its shipped steps of one kind."""
    return [step for step in shipped(vector)["steps"] if verb in step]


@pytest.mark.parametrize("version", RECORDED)
def test_every_vector_is_shipped(version: str) -> None:
    """With its clause, in the order of the recordings; JSON a line."""
    lines = [json.loads(line) for line in files("1")[f"rocketmq-{version}.jsonl"].splitlines()]

    assert [line["id"] for line in lines] == [vector.id for vector in recorded(version)]
    assert {line["format"] for line in lines} == {FORMAT}
    for line in lines:
        assert line["id"] in BY_ID[line["clause"]].vectors
        assert {*line["needs"], *line["lacks"]} <= {*CAPABILITIES, SCAN}


def test_a_step_is_one_thing_and_what_is_asked_is_answered() -> None:
    """One verb a step; an answer is waited for once, of what was asked before, and the request's always."""
    for vector in VECTORS:
        asked: list[str] = []
        answered: list[str] = []
        for step in shipped(vector)["steps"]:
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
        for step in shipped(vector)["steps"]:
            used = {name for text in texts(step) for name in re.findall(r"\$\{(\w+)(?:[+-]\d+)?\}", text)}
            assert used <= known, (vector.id, step)
            known |= set(step.get("save", ()))


def test_names_are_of_a_run() -> None:
    """Each topic and group of a vector has the run in it, wherever it is named."""
    for vector in VECTORS:
        whole = json.dumps(shipped(vector)["steps"], ensure_ascii=False)
        assert not re.search(r"(?<![A-Za-z0-9])[tg]c\d{3}(?!" + re.escape(RUN) + ")", whole), vector.id


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
        bad = [SILENCE, {"closed": True}, {**good, "code": 99}, {**good, "flag": 0}, {**good, "language": "PHP"}]
        bad += [{**good, "extFields": {**good["extFields"], "more": "1"}}]
        bad += [] if "body" in vary else [{**good, "body": {"hex": "00"}}]
        for each in bad:
            assert list(differences("", pattern, each, RECORDED_AS)), vector.id


def test_a_length_counts_the_names_of_a_run() -> None:
    """A body that names its topic is six bytes longer where a run is six letters."""
    vector = next(vector for vector in VECTORS if vector.id == "pull-010")
    (answer,) = (step for step in steps(vector, "answer") if step["answer"] == "request")

    for record in answer["expect"][SOME]["body"]["records"]:
        assert RUN in record[SOME]["body"]
        assert record[SOME]["bodyLength"] == len(record[SOME]["body"].replace(RUN, "abcdef"))


def test_the_command_writes_what_the_archive_has(tmp_path: Path) -> None:
    """The same files; the archive is the same bytes at every building, and the page names every capability."""
    done = CliRunner().invoke(main, ["conform", "--export", str(tmp_path / "vectors")])
    name, content = archive(longpoll.__version__)
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        packed = {
            Path(entry.name).name: (tar.extractfile(entry) or io.BytesIO()).read().decode()
            for entry in tar.getmembers()
        }

    assert done.exit_code == 0, done.output
    assert {path.name: path.read_text() for path in (tmp_path / "vectors").iterdir()} == packed
    assert name == f"longpoll-vectors-{longpoll.__version__}.tar.gz"
    assert archive(longpoll.__version__) == (name, content)
    assert all(f"| `{capability}` |" in packed["README.md"] for capability in CAPABILITIES)
    assert f"number {FORMAT};" in packed["README.md"]


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    """Exit code 2."""
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(main, ["conform", "--export", str(tmp_path / "file" / "below")])

    assert done.exit_code == 2
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.output
