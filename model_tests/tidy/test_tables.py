"""Every class that msgspec can decode has its table made where it is defined (`longpoll_spec.tables`)."""

from __future__ import annotations

import gc

import msgspec
from model_tests.service.cold_conversions import NEVER_DECODED, is_decodable, struct_classes

from longpoll_spec.tables import WITH_TABLE


def test_every_class_that_can_be_decoded_has_its_table() -> None:
    """One without `@with_table` would be the next to end a process."""
    without = [kind for kind in struct_classes() if kind not in WITH_TABLE]
    assert [kind for kind in without if is_decodable(kind)] == []
    assert {kind.__name__ for kind in without} == NEVER_DECODED


def test_a_planted_class_without_a_table_is_found() -> None:
    """It can be decoded, and nobody has made its table."""
    planted = msgspec.defstruct("Planted", [("a", int)], module="longpoll_broker.planted")
    assert planted in struct_classes()
    assert is_decodable(planted)
    assert planted not in WITH_TABLE
    del planted
    gc.collect()
