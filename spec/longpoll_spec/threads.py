"""The actor of each step: a thread of the broker, its operator, a producer or a consumer.

A run has a context switch where consecutive steps have different actors. `render.rocketmq_names` has names for readers.
"""

from __future__ import annotations

from typing import Final

from longpoll_spec.model import Action

TIME: Final = ""
"""The actor of a step that only lets time pass: no thread takes it."""

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
    """The actor of the action: `dispatcher`, `pull 0`, `consumer 1` and so on; empty for time.

    If a notifier takes part in an action, the notifier is the actor. An action without any other owner belongs to the
    thread of its pull.
    """
    if action.thread:
        return action.thread
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
