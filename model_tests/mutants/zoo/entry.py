"""An entry of the zoo: a bug as a change of our own text, with where it was first seen and its symptom.

Applying an entry replaces text in the sources of a checkout. If a knob of the policy is the bug, its value becomes the
default, also in the spec. Who finds it: `methods`. How it gets into a process: `plant`.
"""

from __future__ import annotations

from typing import Final, Literal

from attrs import field, frozen

Kind = Literal["historic", "lock", "ours"]
"""A bug that other projects have had; one of our locks or guards taken away; any other fault of ours."""

POLICY: Final = "spec/longpoll_spec/policy.py"
BROKER: Final = "reference/longpoll_broker"
STORE: Final = "reference/longpoll_broker/store"
FAST: Final = "reference/longpoll_broker/fast"
CLIENT: Final = "reference/longpoll_client"
RULES: Final = "reference/longpoll_judge/rules"
HOLD: Final = f"{BROKER}/hold/hold_table.py"
NOTIFIER: Final = f"{BROKER}/hold/notifier.py"
HOLD_SERVICE: Final = f"{BROKER}/hold/hold_service.py"
PULL_PROCESSOR: Final = f"{BROKER}/hold/pull_processor.py"
CHANNEL: Final = f"{BROKER}/io/channel.py"
TABLE: Final = (HOLD, NOTIFIER, HOLD_SERVICE, POLICY)
"""The hold table: what the world beside the law and the switches between bytecodes drive."""


@frozen
class Change:
    """One text for another in one file of the checkout."""

    file: str
    """Relative to the checkout."""
    before: str
    """Stands in the file exactly once."""
    after: str


@frozen
class Entry:
    """One bug."""

    id: str
    kind: Kind
    source: str
    """The project, and its issue or finding."""
    says: str
    """What goes wrong, and how it shows to a user."""
    changes: tuple[Change, ...] = field(default=())
    units: tuple[str, ...] = field(default=())
    """Tests that ought to be red, relative to `model_tests`; without any, those of the rooms that are changed."""
    knob: str = field(default="")
    """`KNOB=VALUE` where the law has the bug as a knob."""
    slip: str = field(default="")
    """The name of the slip (`slip_table.name_of`) where the law has the bug as one."""
    policy: str = field(default="strict")
    """The policy in whose law the knob or the slip is planted."""

    @property
    def files(self) -> frozenset[str]:
        return frozenset(change.file for change in self.changes)


def default_of(setting: str, now: str) -> Change:
    """Change a knob's default; `now` is its current text."""
    name, _, value = setting.partition("=")
    if value in {"true", "false"}:
        typed, after = f"{name}: bool", value.title()
    else:
        typed, after = f"{name}: {name.title().replace('_', '')}", f'"{value}"'
    return Change(POLICY, f"{typed} = field(default={now})", f"{typed} = field(default={after})")
