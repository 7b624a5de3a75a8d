"""Byteman rules that write a line at each place, with the moment, and stop nobody.

| word of a line | what it is                                                              |
|----------------|-------------------------------------------------------------------------|
| 1              | the gate's name                                                         |
| 2              | the thread's number, and `d` or `s` behind it for dispatcher or scanner |
| 3              | `System.nanoTime`, which on Linux is the monotonic clock of the machine |
| 4, 5, 6        | topic, queue, opaque of the pull; `-` for what is not known there       |
| 7              | whether the pull may still be held: `true`, `false`, or `-`             |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from longpoll_spec.render.places import Gate, gates_of

FILE_PROPERTY: Final = "longpoll.steps"
TRACED: Final = ("dispatch", "notify", "taken", "each", "keep", "done", "read", "hold", "held", "served")
OPTIONS: Final = ("-Dorg.jboss.byteman.compile.to.bytecode",)
"""Rules are compiled: an interpreted one costs several times as much."""
_BEGIN: Final = f"""RULE begin
CLASS org.apache.rocketmq.broker.BrokerStartup
METHOD main
AT ENTRY
IF TRUE
DO openTrace("steps", System.getProperty("{FILE_PROPERTY}"))
ENDRULE
"""
_THREAD: Final = (
    'Thread.currentThread().getId() + (Thread.currentThread().getName().endsWith("ReputMessageService") ? "d" : '
    '(Thread.currentThread().getName().endsWith("PullRequestHoldService") ? "s" : ""))'
)


def tracing_of(version: str) -> str:
    """The script for a version."""
    gates = {gate.name: gate for gate in gates_of(version)}
    return _BEGIN + "".join(_rules(gates[name] for name in TRACED))


def _rules(gates: Iterable[Gate]) -> Iterable[str]:
    for gate in gates:
        told = [gate.told.get(name, '"-"') for name in ("topic", "queue", "request", "suspends")]
        words = ' + " " + '.join([f'"{gate.name}"', _THREAD, "at", *told])
        held = (
            f"held:org.apache.rocketmq.broker.longpolling.PullRequest = {gate.request};\n     " if gate.request else ""
        )
        yield (
            f"RULE {gate.name}\nCLASS {gate.class_name}\nMETHOD {gate.method}\n{gate.place}\n"
            f'BIND {held}at:long = System.nanoTime()\nIF TRUE\nDO traceln("steps", {words})\nENDRULE\n'
        )
