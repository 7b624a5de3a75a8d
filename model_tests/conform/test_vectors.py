"""Clauses and vectors refer to each other; vectors can be minimised and read by other programs."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from model_tests.conform.questions import EXPRESSIONS, FIRST, questions
from model_tests.door.release import archive
from model_tests.support.spec.cases import quick_if

import longpoll
from longpoll.cli import main
from longpoll_conform.clauses import BY_ID, BY_VECTOR, CAPABILITIES, CLAUSES, POLLS, POPS, PROFILES, SEEN
from longpoll_conform.compare import Difference, compare, differences
from longpoll_conform.export import (
    BEGIN,
    FORMAT,
    RUN,
    SCAN,
    SET,
    SILENCE,
    SOME,
    files,
    flat,
    pattern_of,
    seen,
    shipped,
)
from longpoll_conform.suite import minimise
from longpoll_conform.vectors import RECORDED, RECORDED_AS, Vector, VectorError, recorded
from longpoll_conform.wire import NotReadableError, decode_command, encode_command, lenient_json, read_records
from longpoll_judge.contract.result import PROPERTIES
from longpoll_protocol.frames import Command, Serialisation, encode
from longpoll_spec.bounds import EXPLORATIONS, named
from longpoll_spec.policy import ROCKETMQ_5, STRICT
from longpoll_spec.specification import properties_of, specification_of

VECTORS = tuple(vector for version in RECORDED for vector in recorded(version))
PARTS: Final[Mapping[str, str]] = {
    "RUN-1": "lost_by_hold lost_by_keep woken_within nothing_skipped",
    "RUN-2": "queued_by_deadline no_lost_deadline nothing_dropped dropped_by_reject dropped_by_throw",
    "RUN-7": "deadline_is_its_pulls not_answered_early",
    "RUN-4": "offset_goes_on",
    "PULL-READ-7": "moved_is_told",
    "POP-2": "pop_is_kept",
}
"""Clause -> the properties of the specification that the clause checks under another name."""
INSIDE: Final[Mapping[str, str]] = {
    "only an internal record shows it": "visible_is_monotone follows_the_law round_is_whole",
    "the hold table is not visible from outside": (
        "hold_limit_kept table_is_tidy no_orphan buckets_are_swept closed_is_let_go"
    ),
    "a conformance run changes no roles, truncates no queue, and neither stops nor kills a working broker": (
        "answered_on_stop seen_survives commit_in_queue only_disk_survives told_of_role_change told_of_master_return "
        "return_is_whole"
    ),
    "it is about whole groups over time, and a clause tests one thing": "message_is_delivered",
    "it is about the specification itself": "time_can_pass",
}
"""Reason -> the properties of the specification and the judge that have no clause for this reason."""
NAMED: Final = [name for table in (PARTS, INSIDE) for names in table.values() for name in names.split()]


def unnamed(law: Collection[str]) -> set[str]:
    seen = {name.split("-", 1)[1].replace("-", "_") for name in SEEN}
    return {*PROPERTIES, *law} - seen - set(NAMED)


def law_names() -> set[str]:
    worlds = [(STRICT, name) for name in ("tiny", *EXPLORATIONS)] + [(ROCKETMQ_5, "role")]
    laws = [specification_of(policy, named(name, policy)) for policy, name in worlds]
    return {text.name for law in laws for text in properties_of(law) if text.kind == "always"}


def test_every_property_of_judge_and_specification_has_a_clause_or_a_reason() -> None:
    law = law_names()

    assert len(law) >= 32
    assert unnamed(law) == set()
    assert unnamed({*law, "planted"}) == {"planted"}
    assert set(NAMED) <= law | set(PROPERTIES)
    assert len(NAMED) == len(set(NAMED))
    assert PARTS.keys() <= BY_ID.keys()


def unshown(clauses: Collection[str], vectors: Collection[str]) -> tuple[set[str], set[str]]:
    """Return the vectors that no clause names, and the clauses without a recorded vector."""
    shown = {name for clause in CLAUSES if clause.id in clauses for name in clause.vectors}
    silent = {clause.id for clause in CLAUSES if clause.id in clauses and not set(clause.vectors) & set(vectors)}
    return set(vectors) - shown, silent


def test_every_vector_has_a_clause_and_every_clause_has_a_vector() -> None:
    clauses, vectors = {clause.id for clause in CLAUSES}, {*(vector.id for vector in VECTORS), *POLLS, *POPS, *SEEN}

    assert unshown(clauses, vectors) == (set(), set())
    assert unshown(clauses - {"PULL-WAKE-6"}, vectors) == ({"hold-146"}, set())
    assert unshown(clauses, vectors - {"hold-146"}) == (set(), {"PULL-WAKE-6"})
    assert sum(len(clause.vectors) for clause in CLAUSES) == len(BY_VECTOR), "the vector has one clause"
    assert len(clauses) == len(CLAUSES)


def test_clauses_are_sentences_with_ids_and_sources() -> None:
    for clause in CLAUSES:
        assert re.fullmatch(r"[A-Z]+(-[A-Z]+)?-[0-9]+", clause.id)
        assert clause.sentence[0].isupper()
        assert clause.sentence.endswith(".")
        assert clause.source
    assert {vector.profile for vector in VECTORS} == PROFILES.keys()


def test_names_differ_between_runs() -> None:
    """Names have a fixed length and differ between runs, and bodies with names get new checksums."""
    for vector in VECTORS[::4]:
        one, other, again = (vector.named_for(run) for run in ("one", "other", "one"))
        whole = json.dumps(vector.case, ensure_ascii=False)
        assert one == again
        assert len(json.dumps(one.case, ensure_ascii=False)) - len(whole) in range(-60, 61), "the checksum is a number"
        if re.search(r"(?<![A-Za-z0-9])tc\d{3}", whole):
            assert one != other
            assert not re.search(r"(?<![A-Za-z0-9])tc\d{3}", json.dumps(one.case, ensure_ascii=False))


@pytest.mark.parametrize("run", quick_if(["one", "f00d", "1a2b3c4d"], lambda run: run == "one"))
def test_names_of_two_parts_of_a_run_never_collide(run: str) -> None:
    """If names were drawn at random from 1.7 million, two of them would collide in one run of four."""
    named = (each for each in VECTORS if "topic" in (each.case["request"].get("extFields") or {}))
    vector = min(named, key=lambda each: len(json.dumps(each.case)))
    topics = {vector.named_for(run, life).case["request"]["extFields"]["topic"] for life in range(3_000)}

    assert len(topics) == 3_000


def test_a_vector_is_equal_to_itself_and_each_change_is_a_difference() -> None:
    vector = next(each for each in VECTORS if each.id == "pull-010")
    case = dict(vector.case)
    assert compare(case, case, RECORDED_AS, RECORDED_AS) == []
    response = case["response"]
    changes = (
        {"response": {**response, "code": 1}},
        {"response": {**response, "flag": 0}},
        {"response": {**response, "remark": None}},
        {"response": {**response, "extFields": {}}},
        {"response": None},
        {"response": {"closed": True}},
        {"held_ms": 5_000},
        {"errors": ["planted"]},
    )
    for change in changes:
        assert compare(case, {**case, **change}, RECORDED_AS, RECORDED_AS), change


def test_an_unrecorded_version_is_reported_in_one_sentence() -> None:
    with pytest.raises(VectorError, match=re.escape("did you mean '4.9.7'")):
        recorded("4.9.8")


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    st.integers(0, 30_000),
    st.integers(0, 2**31 - 1),
    st.dictionaries(texts, texts),
    st.binary(max_size=50),
    st.booleans(),
)
def test_both_codecs_agree(code: int, opaque: int, fields: dict[str, str], body: bytes, is_json: bool) -> None:
    """Each of two codecs, which share no code, reads the frames that the other codec writes."""
    kind = Serialisation.JSON if is_json else Serialisation.ROCKETMQ
    ours = b"".join(map(bytes, encode(Command(code, opaque, ext_fields=fields, body=body, serialisation=kind))))
    read = decode_command(ours[4:])
    written = encode_command({**read, "extFields": fields}, read["serialize"])

    assert (read["code"], read["opaque"], read["extFields"] or {}, read["body"]) == (code, opaque, fields, body)
    assert decode_command(written[4:]) == {**read, "extFields": fields or read["extFields"]}


def raised_by(read: Callable[[bytes], object], content: bytes) -> BaseException | None:
    try:
        read(content)
    except ValueError as error:
        return error
    return None


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    assert isinstance(raised_by(decode_command, content), NotReadableError | None)
    assert isinstance(raised_by(read_records, content), NotReadableError | None)
    assert isinstance(raised_by(lenient_json, content), ValueError | None)


ASKED = ("id", "title", "profile", "serialize", "request")


ANSWERS = {"response", "held_ms", "sent_ms"}


def without_answers(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in step.items() if name not in ANSWERS} for step in steps]


@pytest.mark.parametrize("version", RECORDED)
def test_each_question_was_asked(version: str) -> None:
    cases = {vector.id: vector.case for vector in recorded(version) if int(vector.id.split("-")[1]) >= FIRST}
    asked = {question["id"]: question for question in questions()}

    assert list(cases) == list(asked)
    for name, question in asked.items():
        case = cases[name]
        assert {part: case[part] for part in ASKED} == {part: json.loads(json.dumps(question[part])) for part in ASKED}
        for part in ("setup", "after"):
            assert without_answers(case.get(part, [])) == json.loads(json.dumps(question.get(part, [])))
        assert case.get("normalised", []) == question.get("normalised", [])


def test_there_are_over_five_hundred_recorded_conversations() -> None:
    assert sum(len(recorded(version)) for version in RECORDED) >= 500
    for title, expressions in EXPRESSIONS.items():
        codes = {
            vector.case["response"]["code"] for vector in recorded("5.5.0") if vector.title.startswith(f"{title}: ")
        }
        assert len(expressions) >= 7
        assert codes & {0, 20}
    assert {(vector.case["response"] or {}).get("code") for vector in recorded("4.9.7")} >= {25, 27, 28}


def test_no_message_matches_every_expression_of_a_clause() -> None:
    """A filter that passes everything or nothing fails each clause about expressions that are not refused."""
    for clause in {
        BY_VECTOR[vector.id] for vector in recorded("4.9.7") if vector.profile == "sql" and vector.id > "sql-512"
    }:
        found = [vector.case["response"] for vector in recorded("4.9.7") if vector.id in clause.vectors]
        if clause.id == "PULL-SQL-12":
            assert {answer["code"] for answer in found} == {20, 27}
            continue
        offsets = [frozenset(record["queueOffset"] for record in answer["body"].get("records", ())) for answer in found]
        assert len(set(offsets)) >= 3, clause.id


EMPTY = Difference("response.body.empty", "nothing", "true")


CODE = Difference("response.code", "0", "17")


LATER = Difference("after[0].code", "0", "1")


def vector(*setup: str) -> Vector:
    steps = [{"code": 34 if name == "heartbeat" else 0, "name": name} for name in setup]
    return Vector("pull-062", "", "default", "5.5.0", {"setup": steps, "request": {"code": 11}, "response": None})


def names(less: Vector) -> list[str]:
    return [step["name"] for step in less.case["setup"]]


OTHER = Difference("response.code", "0", "24")
Left = list[str]
MINIMISED: dict[str, tuple[str, list[Difference], Callable[[Left], list[Difference]], Left]] = {
    "steps that do not matter": (
        "make look send", [EMPTY, LATER], lambda left: [EMPTY] if "send" in left else [], ["send"],
    ),
    "without the topic there is no message": (
        "make send", [EMPTY], lambda left: [EMPTY] if "make" in left else [CODE, EMPTY], ["make"],
    ),
    "both codes are wrong, and of different things": (
        "make send", [EMPTY, OTHER], lambda left: [EMPTY, OTHER if "make" in left else CODE], ["make"],
    ),
    "without a heartbeat 24 would be right": ("heartbeat look", [CODE], lambda _left: [CODE], ["heartbeat"]),
    "of a step the place would be another one": ("make send", [LATER], lambda _left: [LATER], ["make", "send"]),
}  # fmt: skip


@pytest.mark.parametrize("name", MINIMISED)
def test_a_vector_is_minimised_step_by_step(name: str) -> None:
    setup, differs, play, needed = MINIMISED[name]
    whole = vector(*setup.split())
    less, left_out = minimise(whole, differs, lambda less: play(names(less)))
    assert (names(less), left_out) == (needed, len(setup.split()) - len(needed))


VERBS = {"ask", "answer", "after", "sleepMs", "until", "close", "pushes"}


def strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from strings_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings_in(each)


def content(piece: dict[str, Any]) -> bytes:
    """Return the bytes of a part of a vector, with a run's names and with header numbers as text."""
    named = str(piece.get("text", "")).replace(RUN, "abcdef")
    named = re.sub(
        r'(?<="extFields": \{).*?\}', lambda found: re.sub(r": (\d+|true|false)(?=[,}])", r': "\1"', found[0]), named
    )
    return (named.encode() + bytes.fromhex(piece.get("hex", ""))) * int(piece.get("times", 1))


@cache
def all_steps() -> dict[tuple[str, str], list[dict[str, Any]]]:
    return {(vector.version, vector.id): shipped(vector)["steps"] for vector in VECTORS}


def steps_of(vector: Vector) -> list[dict[str, Any]]:
    return all_steps()[vector.version, vector.id]


def steps(vector: Vector, verb: str) -> list[dict[str, Any]]:
    return [step for step in steps_of(vector) if verb in step]


@pytest.mark.parametrize("version", RECORDED)
def test_every_vector_is_shipped(version: str) -> None:
    lines = [json.loads(line) for line in files("1")[f"rocketmq-{version}.jsonl"].splitlines()]

    assert [line["id"] for line in lines] == [vector.id for vector in recorded(version)]
    assert {line["format"] for line in lines} == {FORMAT}
    for line in lines:
        assert line["id"] in BY_ID[line["clause"]].vectors
        assert {name.removeprefix("!") for name in line["when"]} <= {*CAPABILITIES, SCAN}


def test_a_step_has_one_verb_and_each_request_has_an_answer() -> None:
    """Each step has one verb. Each answer is awaited once, after its request; the main request has an answer."""
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
    for vector in VECTORS:
        known = {"run", "brokerName", "cluster"}
        for step in steps_of(vector):
            used = {
                name
                for text in strings_in({**step, "meant": None})
                for name in re.findall(r"\$\{(\w+)(?:[+-]\d+)?\}", text)
            }
            assert used <= known, (vector.id, step)
            known |= set(step.get("save", ()))


def test_every_name_contains_the_name_of_the_run() -> None:
    for vector in VECTORS:
        whole = json.dumps(steps_of(vector), ensure_ascii=False)
        whole += "".join(bytes.fromhex(text).decode("latin-1") for text in re.findall(r'"hex": "([0-9a-f]*)"', whole))
        assert not re.search(r"(?<![A-Za-z0-9])[tg]c\d{3}(?!" + re.escape(RUN) + ")", whole), vector.id


def test_frames_have_the_described_fields() -> None:
    for vector in VECTORS:
        for step in steps(vector, "header"):
            header, body = content(step["header"]), b"".join(map(content, step["body"]))
            mark = step["header"].get("kind", 0) << 24 | len(header)
            read = decode_command(mark.to_bytes(4) + header + body)

            assert (read["code"], read["opaque"]) == (step["meant"]["code"], step["opaque"])
            assert read["serialize"] == step["meant"]["serialize"]
            assert (read["extFields"] or {}).keys() == (step["meant"]["extFields"] or {}).keys()


def test_only_the_recorded_answer_matches_its_pattern() -> None:
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
    """A body that names its topic is six bytes longer if the run's name has six letters."""
    vector = next(vector for vector in VECTORS if vector.id == "pull-010")
    (answer,) = (step for step in steps(vector, "answer") if step["answer"] == "request")

    for number in range(int(answer["expect"]["records.#"])):
        body = answer["expect"][f"records.{number}.body"]
        assert RUN in body
        assert answer["expect"][f"records.{number}.bodyLength"] == str(len(body.replace(RUN, "abcdef")))


def test_paths_are_equivalent_to_the_pattern() -> None:
    """A pattern becomes one text for each path: `.#` counts a closed list or object, and unordered lists are sorted."""
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
    """The second item of a JSON list contains no variable, so sorting the list does not depend on a run's names."""
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


def test_the_command_writes_the_files_of_the_archive(tmp_path: Path) -> None:
    """The archive has the same files and the same bytes at every build, and the page names every capability."""
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
    assert f"describes format {FORMAT}." in packed["README.md"]


def test_an_unwritable_place_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(main, ["conform", "--export", str(tmp_path / "file" / "below")])

    assert done.exit_code == 2
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.output
