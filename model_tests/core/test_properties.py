"""Properties in the order of a Java map, against what the Java broker stored."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from longpoll_conform.vectors import recorded
from longpoll_protocol.properties import (
    FORM_4_9,
    FORM_5,
    WAIT,
    PropertiesForm,
    hash_order,
    read_properties,
    write_properties,
)

EXPECTED = Path(__file__).parents[1] / "store" / "golden" / "store-4.9.7-clean.expected.json.xz"


def java_records() -> list[dict[str, Any]]:
    """What the Java broker stored, but for batches, whose messages it stores as they came."""
    records: list[dict[str, Any]] = json.loads(lzma.decompress(EXPECTED.read_bytes()))["commitlog"]["records"]
    return [record for record in records if record["topic"] != "T_batch"]


def java_answers() -> list[dict[str, Any]]:
    """What the Java broker 5.5.0 had stored of the messages that it answered to pulls, but for batches likewise."""
    records: list[dict[str, Any]] = []
    for vector in recorded("5.5.0"):
        case = vector.case
        for step in (case, *case.get("during", []), *case.get("after", [])):
            body = (step.get("response") or {}).get("body") or {}
            records += body.get("records", [])
    return [record for record in records if "CLUSTER" in record["properties"]]


def differing(records: list[dict[str, Any]], form: PropertiesForm = FORM_4_9) -> list[str]:
    """The stored texts that we would not write alike; names of one bucket come as they were stored."""
    texts = [record["propertiesRaw"] for record in records]
    return [text for text in texts if write_properties(read_properties(text), form).decode() != text]


def test_the_order_is_that_of_the_java_broker() -> None:
    """Over a thousand stored records, with one to ten properties each."""
    records = java_records()

    assert len(records) > 1000
    assert differing(records) == []


def test_the_order_is_that_of_the_newer_java_broker() -> None:
    """5.5.0 begins with a larger map and marks the last pair too."""
    records = java_answers()

    assert len(records) > 20
    assert differing(records, FORM_5) == []


def test_another_form_is_seen() -> None:
    """A map of another size lists names in another order, and a missing mark is a missing byte."""
    assert differing(java_records(), PropertiesForm(128, marks_last=False))
    assert differing(java_answers(), PropertiesForm(16, marks_last=True))
    assert len(differing(java_answers(), PropertiesForm(128, marks_last=False))) == len(java_answers())


def test_a_full_table_doubles() -> None:
    """Twelve names fit sixteen buckets, and those of one bucket stand as they came; with thirteen there are 32."""
    names = tuple("Aa0Bb1Cc2Dd3E")
    assert "".join(hash_order(names[:12])) == "0Aa1Bb2Cc3Dd"
    assert "".join(hash_order(names)) == "AaBbCcDdE0123"
    assert hash_order(("UNIQ_KEY", "CLUSTER")) == ("UNIQ_KEY", "CLUSTER")
    assert hash_order(("CLUSTER", "UNIQ_KEY")) == ("CLUSTER", "UNIQ_KEY")


def test_what_is_left_out() -> None:
    """Empty sides and texts without a mark; WAIT is in the map and not in the text; no mark ends the text."""
    found = read_properties("a\x01\x02\x01b\x02c\x02d\x01e\x01f\x02WAIT\x01true\x02")
    assert found == {"d": "e\x01f", WAIT: "true"}
    assert write_properties(found, without=WAIT) == b"d\x01e\x01f"
    assert read_properties(None) == {}
    assert write_properties({}) == b""


@given(st.dictionaries(st.text(st.characters(exclude_characters="\x01\x02"), min_size=1), st.just("v"), max_size=40))
def test_nothing_is_lost(given_properties: dict[str, str]) -> None:
    """Whatever the names, what is written is read again."""
    written = write_properties(given_properties).decode("utf-8", "surrogatepass")
    assert read_properties(written) == given_properties
