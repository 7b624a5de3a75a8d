"""White addresses: every form of pattern, beside what 4.9.7's rules say of it."""

from __future__ import annotations

import pytest

from longpoll_broker.core.tables.addresses import address_match
from longpoll_spec.errors import ConfigError


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("", [], ["127.0.0.1", "::1"]),
        ("*", ["127.0.0.1", "::1"], []),
        ("*.*.*.*", ["127.0.0.1"], []),
        ("10.1.2.3", ["10.1.2.3"], ["10.1.2.4", "10.1.2.30", "::1", "nonsense"]),
        ("10.1.2.3,10.1.2.5", ["10.1.2.3", "10.1.2.5"], ["10.1.2.4"]),
        ("10.1.2.{3,5}", ["10.1.2.3", "10.1.2.5"], ["10.1.2.4"]),
        ("10.1.2.*", ["10.1.2.0", "10.1.2.255"], ["10.1.3.0", "::1"]),
        ("10.1.2-9.*", ["10.1.2.7", "10.1.9.7"], ["10.1.1.7", "10.1.10.7"]),
        ("::1", ["::1", "0:0:0:0:0:0:0:1"], ["::2", "127.0.0.1"]),
        ("1050::5:{600,300c}", ["1050::5:600", "1050::5:300C"], ["1050::5:601"]),
        ("2::ac5:78:1-200:*", ["2::ac5:78:1:7", "2::AC5:78:200:ffff"], ["2::ac5:78:201:7", "2::ac5:79:1:7"]),
    ],
)
def test_who_is_let_in(pattern: str, inside: list[str], outside: list[str]) -> None:
    """Each form lets in what it names and nothing else."""
    match = address_match(pattern)
    assert [address for address in (*inside, *outside) if match(address)] == inside


@pytest.mark.parametrize(
    "pattern", ["10.1.2", "10.1.2.256", "10.1.*", "10.1.9-2.*", "10.1.2.-1", "here", "1.2.3.{x}", "-"]
)
def test_what_is_no_pattern_is_told(pattern: str) -> None:
    """In one line, with an example of one."""
    with pytest.raises(ConfigError, match=r"10\.1\.2|1-9"):
        address_match(pattern)
