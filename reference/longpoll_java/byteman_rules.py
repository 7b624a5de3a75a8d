"""Byteman rules: each gate becomes a rule that asks, over loopback, whether its thread may continue.

A rule sends a one-line GET to the port in the system property `longpoll.gate`, and the thread waits for the answer: `G`
releases it, `T` makes it throw the gate's exception. No class of ours is loaded into the broker. The answering side:
`breakpoints`.

Source: the Byteman Programmer's Guide, version 4.0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from longpoll_spec.render.java_breakpoints import Breakpoint

SCAN_MS: Final = 5_000
"""The period of `PullRequestHoldService.run`, which no setting changes."""
PORT_PROPERTY: Final = "longpoll.gate"
GO: Final = "G"
THROW: Final = "T"
_THREAD: Final = 'Thread.currentThread().getName().replace(" ", "_")'


def rules_of(gates: Iterable[Breakpoint]) -> str:
    """The script for Byteman's agent."""
    return "".join(f"{_rule(gate)}\n" for gate in gates)


def scanning_each(period_ms: int) -> str:
    """A rule that sets the scan's period to `period_ms`; in the source 5 s is a constant."""
    lines = [
        "RULE period",
        "CLASS org.apache.rocketmq.common.ServiceThread",
        "METHOD waitForRunning(long)",
        "AT ENTRY",
        f'IF $1 == {SCAN_MS} AND Thread.currentThread().getName().endsWith("PullRequestHoldService")',
        f"DO $1 = {period_ms}",
        "ENDRULE",
    ]
    return "\n".join(lines) + "\n"


def _rule(gate: Breakpoint) -> str:
    asked = "".join(f' + "&{name}=" + {java}' for name, java in gate.told.items())
    url = f'"http://127.0.0.1:" + System.getProperty("{PORT_PROPERTY}") + "/{gate.name}?thread=" + {_THREAD}{asked}'
    found = {"bucket:ManyPullRequest": gate.bucket, "held:PullRequest": gate.request}
    held = "".join(f"{_named(name)} = {java};\n     " for name, java in found.items() if java)
    lines = [
        f"RULE {gate.name}",
        f"CLASS {gate.class_name}",
        f"METHOD {gate.method}",
        gate.place,
        f"BIND {held}gate:java.net.URL = new java.net.URL({url});",
        "     answer:int = gate.openStream().read()",
        *_action(gate),
        "ENDRULE",
    ]
    return "\n".join(lines) + "\n"


def _action(gate: Breakpoint) -> tuple[str, str]:
    """The condition and the action of a rule."""
    when, what = gate.does
    if what:
        return f"IF answer == {ord(GO)} AND {when}", f"DO {what}"
    if gate.throws:
        return f"IF answer == {ord(THROW)}", f'DO throw new {gate.throws}("thrown by a rule of longpoll")'
    return "IF FALSE", "DO NOTHING"


def _named(typed: str) -> str:
    """A binding's name and the full name of its type."""
    return typed.replace(":", ":org.apache.rocketmq.broker.longpolling.")
