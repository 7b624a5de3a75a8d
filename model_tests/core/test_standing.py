"""Codes, next offsets and suggestions of masters and slaves, one rule at a time."""

from __future__ import annotations

import pytest

from longpoll_broker.shared.broker_role import BrokerRole
from longpoll_broker.shared.topics import GroupConfig
from longpoll_broker.shared.version_traits import STRICT_TRAITS, TRAITS_4_9, TRAITS_5, Traits
from longpoll_broker.store.read import GetStatus

GROUP = GroupConfig("G", broker_id=3, which_broker_when_consume_slowly=7)
ALL = pytest.mark.parametrize("traits", [STRICT_TRAITS, TRAITS_4_9, TRAITS_5], ids=["strict", "4.9", "5"])


@ALL
def test_a_lone_master_changes_nothing(traits: Traits) -> None:
    """Every code and offset stays, and nobody is sent elsewhere."""
    standing = BrokerRole()
    assert standing.is_plain
    for code, status in (
        (0, GetStatus.FOUND),
        (19, GetStatus.OFFSET_OVERFLOW_ONE),
        (20, GetStatus.NO_MATCHED_MESSAGE),
        (21, GetStatus.OFFSET_TOO_SMALL),
    ):
        assert standing.code(code, status, traits, suggests_slave=True) == code
        assert standing.offset_next(5, 9, status) == 9
        assert standing.suggested_broker(GROUP, code, traits, suggests_slave=True) == 0


@ALL
def test_who_is_far_behind_is_sent_to_a_slave_when_slaves_may_be_read(traits: Traits) -> None:
    """`slaveReadEnable` decides; the group says to which broker, also when its reader is not behind."""
    standing = BrokerRole(slave_read=True)
    assert standing.suggested_broker(GROUP, 0, traits, suggests_slave=True) == 7
    assert standing.suggested_broker(GROUP, 0, traits, suggests_slave=False) == 3
    assert standing.suggested_broker(None, 0, traits, suggests_slave=True) == 1


@ALL
def test_a_slave_corrects_no_offset(traits: Traits) -> None:
    """Its own ends may be behind the master's: it says 20, and the offset that was asked for."""
    standing = BrokerRole("SLAVE", 1)
    assert standing.code(21, GetStatus.OFFSET_OVERFLOW_BADLY, traits, suggests_slave=False) == 20
    assert standing.offset_next(99, 10, GetStatus.OFFSET_OVERFLOW_BADLY) == 99
    assert standing.offset_next(5, 9, GetStatus.NO_MATCHED_MESSAGE) == 9
    assert standing.suggested_broker(GROUP, 21, traits, suggests_slave=False) == 3


@ALL
def test_a_slave_that_checks_offsets_corrects_them(traits: Traits) -> None:
    standing = BrokerRole("SLAVE", 1, offset_check_in_slave=True)
    assert standing.code(21, GetStatus.OFFSET_OVERFLOW_BADLY, traits, suggests_slave=False) == 21
    assert standing.offset_next(99, 10, GetStatus.OFFSET_OVERFLOW_BADLY) == 10


def test_a_slave_of_5_whose_master_lives_holds_nobody() -> None:
    """It answers 20 at once and names the master; 4.9 holds as a master does, for the scan is all that wakes there."""
    standing = BrokerRole("SLAVE", 1, slave_read=True, least_broker_id=0)
    assert standing.code(19, GetStatus.OFFSET_OVERFLOW_ONE, TRAITS_5, suggests_slave=False) == 20
    assert standing.code(0, GetStatus.FOUND, TRAITS_5, suggests_slave=False) == 0
    for code in (19, 20, 21):
        assert standing.suggested_broker(GROUP, code, TRAITS_5, suggests_slave=False) == 0
    assert standing.suggested_broker(GROUP, 21, TRAITS_4_9, suggests_slave=False) == 3
    assert standing.code(19, GetStatus.OFFSET_OVERFLOW_ONE, TRAITS_5, suggests_slave=True) == 19
    assert standing.code(19, GetStatus.OFFSET_OVERFLOW_ONE, TRAITS_4_9, suggests_slave=False) == 19
    alone = BrokerRole("SLAVE", 1, slave_read=True, least_broker_id=1)
    assert alone.code(19, GetStatus.OFFSET_OVERFLOW_ONE, TRAITS_5, suggests_slave=False) == 19


@ALL
@pytest.mark.parametrize("code", [0, 19, 20])
def test_a_slave_that_must_not_be_read_names_the_master(code: int, traits: Traits) -> None:
    """4.9 sets 20 and then overwrites it by the read's code (upstream issue #1828); the name is what remains."""
    standing = BrokerRole("SLAVE", 1)
    assert (
        standing.code(code, GetStatus.FOUND if code == 0 else GetStatus.OFFSET_FOUND_NULL, traits, suggests_slave=False)
        == code
    )
    assert standing.suggested_broker(GROUP, code, traits, suggests_slave=True) == 0


@ALL
def test_a_slave_keeps_the_codes_that_are_no_corrections(traits: Traits) -> None:
    """Removed and unmatched messages are passed by, also there."""
    standing = BrokerRole("SLAVE", 1, slave_read=True)
    for status in (GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING):
        assert standing.code(20, status, traits, suggests_slave=True) == 20
        assert standing.offset_next(5, 9, status) == 9
