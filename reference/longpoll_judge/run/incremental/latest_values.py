"""The latest values of a repeated search, so that a follower can report the new ones for weeks.

`run.follow` reports them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from attrs import define, field

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@define(eq=False)
class Latest(Generic[Key, Value]):
    """The values that were found last, in the order of that, each as it was when it was found first.

    Invariant: whatever is in neither `values` nor `left_out` was looked at.
    """

    values: dict[Key, Value] = field(factory=dict)
    left_out: int = 0
    """How many were dropped before a judgement was requested."""
    _fresh: set[Key] = field(factory=set)

    def put(self, key: Key, value: Value, most: int) -> None:
        """Keep a value; if there are more than `most` then, the one that was not found for longest is let go."""
        if key not in self.values:
            self._fresh.add(key)
        self.values[key] = self.values.pop(key, value)
        while len(self.values) > most:
            oldest = next(iter(self.values))
            del self.values[oldest]
            self.left_out += oldest in self._fresh
            self._fresh.discard(oldest)

    def look(self) -> Iterable[Value]:
        """All values; who asks tells them."""
        self._fresh.clear()
        return self.values.values()
