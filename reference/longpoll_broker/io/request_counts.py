"""How many requests came, by their code. Leaves out who is told (`metrics`)."""

from __future__ import annotations

from typing import Final

from longpoll_protocol.codes import RequestCode

NAMES: Final = {code.value: code.name for code in RequestCode}


class RequestCounts(dict[int, int]):
    """Requests by their code; those of unknown codes together under -1, for strangers choose codes."""

    def add(self, code: int, count: int = 1) -> None:
        """Count some; only on the loops' threads, where a lost count in a race is no harm."""
        try:
            self[code] += count
        except KeyError:
            key = code if code in NAMES else -1
            self[key] = self.get(key, 0) + count
