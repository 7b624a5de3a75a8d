"""Clauses and vectors belong to each other, a run's names are its own, and what is no vector is one sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll_conform.clauses import BY_ID, BY_VECTOR, CLAUSES, INSIDE, PARTS, PROFILES, SEEN
from longpoll_conform.compare import compare
from longpoll_conform.vectors import RECORDED, RECORDED_AS, Vector, VectorError, recorded
from longpoll_conform.wire import NotReadableError, decode_command, encode_command, lenient_json, read_records
from longpoll_judge.contract.result import PROPERTIES
from longpoll_protocol.frames.command import Command, encode
from longpoll_protocol.frames.frame import Serialisation
from longpoll_spec.bounds import EXPLORATIONS, named
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.policy import ROCKETMQ_5, STRICT
from longpoll_spec.testing.cases import quick_if

VECTORS = tuple(vector for version in RECORDED for vector in recorded(version))


def unnamed(law: Collection[str]) -> set[str]:
    """Properties of judge and law that neither a clause shows, nor the list of what is inside."""
    seen = {name.split("-", 1)[1].replace("-", "_") for name in SEEN}
    return {*PROPERTIES, *law} - seen - PARTS.keys() - INSIDE.keys()


def law_names() -> set[str]:
    """What must always hold by the law of strict in any of its worlds, and where a master that returns is walked."""
    worlds = [(STRICT, name) for name in ("tiny", *EXPLORATIONS)] + [(ROCKETMQ_5, "role")]
    laws = [law_of(policy, named(name, policy)) for policy, name in worlds]
    return {text.name for law in laws for text in properties_of(law) if text.kind == "always"}


def test_every_property_of_judge_and_law_has_a_clause_or_a_reason() -> None:
    """And none that nobody has is named; a property that is new is missed."""
    law = law_names()

    assert len(law) >= 32
    assert unnamed(law) == set()
    assert unnamed({*law, "planted"}) == {"planted"}
    assert (PARTS.keys() | INSIDE.keys()) <= law | set(PROPERTIES)
    assert not PARTS.keys() & INSIDE.keys()
    assert set(PARTS.values()) <= BY_ID.keys()


def unshown(clauses: Collection[str], vectors: Collection[str]) -> tuple[set[str], set[str]]:
    """Vectors without a clause, and clauses without a vector that was recorded."""
    shown = {name for clause in CLAUSES if clause.id in clauses for name in clause.vectors}
    silent = {clause.id for clause in CLAUSES if clause.id in clauses and not set(clause.vectors) & set(vectors)}
    return set(vectors) - shown, silent


def test_every_vector_shows_a_clause_and_every_clause_is_shown() -> None:
    """And one that is taken away is missed, on either side."""
    clauses, vectors = {clause.id for clause in CLAUSES}, {*(vector.id for vector in VECTORS), *SEEN}

    assert unshown(clauses, vectors) == (set(), set())
    assert unshown(clauses - {"PULL-WAKE-6"}, vectors) == ({"hold-146"}, set())
    assert unshown(clauses, vectors - {"hold-146"}) == (set(), {"PULL-WAKE-6"})
    assert sum(len(clause.vectors) for clause in CLAUSES) == len(BY_VECTOR), "a vector shows one clause"
    assert len(clauses) == len(CLAUSES)


def test_clauses_are_sentences_with_ids_and_sources() -> None:
    """Ids are areas with a number, none twice; profiles are known."""
    for clause in CLAUSES:
        assert re.fullmatch(r"[A-Z]+(-[A-Z]+)?-[0-9]+", clause.id)
        assert clause.sentence[0].isupper()
        assert clause.sentence.endswith(".")
        assert clause.source
    assert {vector.profile for vector in VECTORS} == PROFILES.keys()


def test_names_are_of_the_run() -> None:
    """As long as they were, other ones in another run, and bodies with their checksums too."""
    for vector in VECTORS:
        one, other, again = (vector.named_for(run) for run in ("one", "other", "one"))
        whole = json.dumps(vector.case, ensure_ascii=False)
        assert one == again
        assert len(json.dumps(one.case, ensure_ascii=False)) - len(whole) in range(-60, 61), "checksums have digits"
        if re.search(r"(?<![A-Za-z0-9])tc\d{3}", whole):
            assert one != other
            assert not re.search(r"(?<![A-Za-z0-9])tc\d{3}", json.dumps(one.case, ensure_ascii=False))


@pytest.mark.parametrize("run", quick_if(["one", "f00d", "1a2b3c4d"], lambda run: run == "one"))
def test_no_two_lives_of_a_run_have_a_name_in_common(run: str) -> None:
    """Not even of thousands: by names that are drawn, a thousand of 1.7 million are alike in one run of four."""
    named = (each for each in VECTORS if "topic" in (each.case["request"].get("extFields") or {}))
    vector = min(named, key=lambda each: len(json.dumps(each.case)))
    topics = {vector.named_for(run, life).case["request"]["extFields"]["topic"] for life in range(3_000)}

    assert len(topics) == 3_000


def test_a_vector_is_equal_to_itself_and_each_change_is_a_difference() -> None:
    """Of code, fields, messages and times."""
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


def test_a_version_that_nobody_recorded_is_one_sentence() -> None:
    """With the near one."""
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
def test_both_codecs_say_the_same(code: int, opaque: int, fields: dict[str, str], body: bytes, is_json: bool) -> None:
    """Written by the one and read by the other, without a line in common."""
    kind = Serialisation.JSON if is_json else Serialisation.ROCKETMQ
    ours = b"".join(map(bytes, encode(Command(code, opaque, ext_fields=fields, body=body, serialisation=kind))))
    read = decode_command(ours[4:])
    written = encode_command({**read, "extFields": fields}, read["serialize"])

    assert (read["code"], read["opaque"], read["extFields"] or {}, read["body"]) == (code, opaque, fields, body)
    assert decode_command(written[4:]) == {**read, "extFields": fields or read["extFields"]}


def raised_by(read: Callable[[bytes], object], content: bytes) -> BaseException | None:
    """What reading raises; None when it reads."""
    try:
        read(content)
    except ValueError as error:
        return error
    return None


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    """Nothing else is raised, whatever a broker sends."""
    assert isinstance(raised_by(decode_command, content), NotReadableError | None)
    assert isinstance(raised_by(read_records, content), NotReadableError | None)
    assert isinstance(raised_by(lenient_json, content), ValueError | None)


def test_a_vector_is_data() -> None:
    """Frozen, and compared by what it says."""
    vector = VECTORS[0]
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        vector.id = "other"  # type: ignore[misc]
    assert isinstance(vector, Vector)
