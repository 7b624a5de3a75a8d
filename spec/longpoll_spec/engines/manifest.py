"""The pinned numbers: the results that every engine must find for each preset under each of the pinned bounds.

`manifest.json` is a list with one entry per line. If you change the specification, the numbers change too: run `python
-m longpoll_spec.engines.manifest` to rewrite them, then review the diff.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Final

import msgspec

from longpoll_spec.bounds import EXPLORATIONS, TIMEOUTS, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.exploration import Exploration
from longpoll_spec.policy import PRESETS, preset
from longpoll_spec.specification import properties_of, specification_of
from longpoll_spec.tables import with_table

PINNED_BOUNDS: Final = ("tiny", "small", *EXPLORATIONS, *TIMEOUTS)
_FILE: Final = "manifest.json"


@with_table
class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The pinned results of exploring one preset under one choice of bounds."""

    policy: str
    bounds: str
    requests: int
    messages: int
    hold_ticks: int
    scan_ticks: int
    queues: int = 1
    tags: int = 1
    aspects: list[str] = []
    distinct_states: int
    transitions: int
    depth: int
    violated: dict[str, int]
    """Maps a violated property to the number of steps of its shortest counterexample."""
    reached: dict[str, int]
    """Maps a reached `sometimes` property to the number of steps of the shortest run that reaches it."""
    holds: list[str]
    unreached: list[str]


def entry_of(result: Exploration) -> Entry:
    """The entry of a complete exploration."""
    assert result.complete, "an exploration that ended early cannot be pinned"
    bounds = result.model.bounds
    depths: dict[str, dict[str, int]] = {"violated": {}, "reached": {}}
    names: dict[str, list[str]] = {"holds": [], "unreached": []}
    for verdict in result.verdicts:
        if verdict.verdict in names:
            names[verdict.verdict].append(verdict.name)
        else:
            assert verdict.depth is not None, verdict.name
            depths[verdict.verdict][verdict.name] = verdict.depth
    return Entry(
        policy=result.model.policy.name,
        bounds=bounds.name,
        requests=bounds.requests,
        messages=bounds.messages or 0,
        hold_ticks=bounds.hold_ticks,
        scan_ticks=bounds.scan_ticks,
        queues=bounds.queues,
        tags=bounds.tags,
        aspects=sorted(bounds.aspects),
        distinct_states=result.distinct_states,
        transitions=result.transitions,
        depth=result.depth,
        violated=depths["violated"],
        reached=depths["reached"],
        holds=names["holds"],
        unreached=names["unreached"],
    )


def pinned_text() -> str:
    """The text of the manifest."""
    return files("longpoll_spec.engines").joinpath(_FILE).read_text(encoding="utf-8")


def pinned() -> list[Entry]:
    """Every pinned entry."""
    return msgspec.json.decode(pinned_text(), type=list[Entry])


def pinned_entry(policy: str, bounds: str) -> Entry:
    """The pinned entry of a preset under the bounds of this name; raises StopIteration if no entry is pinned."""
    return next(entry for entry in pinned() if (entry.policy, entry.bounds) == (policy, bounds))


def text_of(entries: Iterable[msgspec.Struct]) -> str:
    """The text of a pinned file: a JSON list with one entry per line."""
    lines = (msgspec.json.format(msgspec.json.encode(entry), indent=0).decode() for entry in entries)
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _measure(policy: str, bounds: str) -> Entry:
    model = specification_of(preset(policy), named(bounds, preset(policy)))
    return entry_of(explore(model, properties_of(model)))


def main() -> None:
    """Rewrite the manifest from the packed engine."""
    entries = [_measure(policy, bounds) for bounds in PINNED_BOUNDS for policy in PRESETS]
    Path(str(files("longpoll_spec.engines").joinpath(_FILE))).write_text(text_of(entries), encoding="utf-8")


if __name__ == "__main__":
    main()
