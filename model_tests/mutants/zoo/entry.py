"""An entry of the zoo: a bug as a change of our sources, with its origin and symptom.

Applying an entry replaces text in the sources of a checkout. If a knob of the policy is the bug, its value becomes the
default, also in the spec. Test methods that find it: `methods`. Injection into a process: `plant`.
"""

from __future__ import annotations

from typing import Final, Literal

from attrs import field, frozen

Kind = Literal["historic", "lock", "ours"]
"""A bug of another project; a removed lock or guard of ours; any other fault in our code."""

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
"""The files of the hold table."""


@frozen
class Change:
    """One text for another in one file of the checkout."""

    file: str
    """Relative to the checkout."""
    before: str
    """Occurs in the file exactly once."""
    after: str


@frozen
class Entry:
    """One bug."""

    id: str
    kind: Kind
    source: str
    """The project, and its issue or finding."""
    says: str
    """The fault, and its symptom for a user."""
    changes: tuple[Change, ...] = field(default=())
    units: tuple[str, ...] = field(default=())
    """Tests that should fail, relative to `model_tests`; by default those of the changed packages."""
    knob: str = field(default="")
    """`KNOB=VALUE` if the specification has the bug as a knob."""
    slip: str = field(default="")
    """The name of the spec mutant (`slip_table.name_of`) with this bug, if any."""
    policy: str = field(default="strict")
    """The policy whose specification gets the knob or mutant."""

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
