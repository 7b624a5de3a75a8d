"""Every class that msgspec can decode has its table made where it is defined (`longpoll_spec.tables`)."""

from __future__ import annotations

from model_tests.service.cold_conversions import NEVER_DECODED, is_decodable, struct_classes

from longpoll_spec.tables import WITH_TABLE


def test_every_class_that_can_be_decoded_has_its_table() -> None:
    """One without `@with_table` would be the next to end a process."""
    without = [kind for kind in struct_classes() if kind not in WITH_TABLE]
    assert [kind for kind in without if is_decodable(kind)] == []
    assert {kind.__name__ for kind in without} == NEVER_DECODED
