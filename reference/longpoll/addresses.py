"""Parses addresses written as HOST:PORT."""

from __future__ import annotations

from longpoll_runtime import Address
from longpoll_spec.errors import ConfigError


def address_of(text: str) -> Address:
    """Parse HOST:PORT; raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{text!r} is not an address; write HOST:PORT with a port from 0 to 65535 (0: any free port)")
    return host.strip("[]"), int(port)
