"""Properties in the order of a Java map, against what the Java broker stored."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll_broker.core import properties
from longpoll_broker.core.properties import WAIT, hash_order, read_properties, write_properties

EXPECTED = Path(__file__).parents[1] / "store" / "golden" / "store-4.9.7-clean.expected.json.xz"


def java_records() -> list[dict[str, Any]]:
    """What the Java broker stored, but for batches, whose messages it stores as they came."""
    records: list[dict[str, Any]] = json.loads(lzma.decompress(EXPECTED.read_bytes()))["commitlog"]["records"]
    return [record for record in records if record["topic"] != "T_batch"]


def differing(records: list[dict[str, Any]]) -> list[str]:
    """The stored texts that we would not write alike; names of one bucket come as they were stored."""
    texts = [record["propertiesRaw"] for record in records]
    return [text for text in texts if write_properties(read_properties(text)).decode() != text]


def test_the_order_is_that_of_the_java_broker() -> None:
    """Over a thousand stored records, with one to ten properties each."""
    records = java_records()

    assert len(records) > 1000
    assert differing(records) == []


def test_another_table_size_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A map of 128 buckets, as 5.x makes it, lists names in another order."""
    hash_order.cache_clear()
    monkeypatch.setattr(properties, "_TABLE_SIZE", 128)
    try:
        assert differing(java_records())
    finally:
        hash_order.cache_clear()


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
