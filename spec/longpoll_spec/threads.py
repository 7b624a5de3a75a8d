"""Who takes a step: the thread or the person by whom each action happens.

A run has a context switch where two consecutive steps are not by the same one. Leaves out names for readers
(`render.story.rocketmq_names`).
"""

from __future__ import annotations

from typing import Final

from longpoll_spec.model import Action

TIME: Final = ""
"""Who lets time pass: nobody."""

_BY_FAMILY: Final = {"notify": "dispatcher", "scan": "scanner", "walk": "rechecker"}
_NOTIFIERS: Final = frozenset(_BY_FAMILY.values())
_BY_ACTION: Final = {
    "append": "producer",
    "make_visible": "dispatcher",
    "tick": TIME,
    "stop": "operator",
    "expire": "heap",
    "run": "executor",
    "executor_rejects": "executor",
    "sweep": "scanner",
    "remove_bucket": "scanner",
    "role_change": "operator",
    "master_returns": "operator",
    "return_look": "operator",
    "return_take": "operator",
    "trim": "store",
    "truncate": "operator",
    "queue_deleted": "operator",
    "flush": "store",
    "crash_and_recover": "operator",
}
_BY_CONSUMER: Final = frozenset({"next_pull", "offset_commit", "offset_reset", "channel_closes"})


def thread_of(action: Action) -> str:
    """By whom the action happens: `dispatcher`, `pull 0`, `consumer 1` and so on; empty for time itself.

    A notifier that takes part acts; what has no other owner is done by the pull's own thread.
    """
    named = next((actor for actor in action.actors if isinstance(actor, str) and actor in _NOTIFIERS), None)
    request = next((actor for actor in action.actors if isinstance(actor, int)), None)
    family = action.name.split("_", maxsplit=1)[0]
    if family in _BY_FAMILY:
        return _BY_FAMILY[family]
    if named is not None:
        return named
    if action.name in _BY_CONSUMER:
        return f"consumer {request}"
    return _BY_ACTION.get(action.name, f"pull {request}")
