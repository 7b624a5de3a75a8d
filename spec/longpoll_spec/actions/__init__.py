"""The actions of the specification, one module per family, in the order in which a message and a pull meet them.

An action is one critical section, one store read, or one step of a thread between them. With coarser actions, some
known findings would not show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from longpoll_spec.actions import (
    commits,
    core,
    faults,
    produce,
    pull,
    role,
    time,
    traversal,
)
from longpoll_spec.actions.family import instances
from longpoll_spec.model import Action, Family
from longpoll_spec.policy import Policy
from longpoll_spec.state import State

FAMILIES: Final[tuple[Family, ...]] = (
    produce.append,
    produce.make_visible,
    pull.next_pull,
    pull.pull_read,
    pull.find_bucket,
    pull.recheck_first,
    pull.hold,
    pull.recheck_after_hold,
    traversal.notify_start,
    traversal.notify_each,
    traversal.notify_end,
    traversal.scan_start,
    traversal.scan_each,
    traversal.scan_end,
    traversal.recheck_by_walk,
    traversal.walk_start,
    traversal.walk_each,
    traversal.walk_end,
    traversal.recheck_after_keep,
    traversal.sweep,
    traversal.remove_bucket,
    role.return_look,
    role.return_take,
    commits.commit_pulled,
    commits.offset_commit,
    commits.offset_reset,
    pull.expire,
    pull.run,
    time.tick,
    faults.executor_rejects,
    faults.notifier_throws,
    traversal.scan_throws,
    faults.channel_closes,
    faults.trim,
    faults.truncate,
    faults.queue_deleted,
    role.role_change,
    role.master_returns,
    faults.flush,
    faults.crash_and_recover,
    faults.stop,
)


def families_of(policy: Policy) -> tuple[Family, ...]:
    """The families of a policy's actions, in the order of the spec; those of a specification file come last."""
    own = policy.extension
    if own is None:
        return FAMILIES
    gone = own.left_out.union(each.name for each in own.families)
    return (*(each for each in (core.CORE if own.is_alone else FAMILIES) if each.name not in gone), *own.families)


def actions_of(state: State) -> Iterable[Action]:
    """Every action instance that the state's policy has, in the order of the spec."""
    for family in families_of(state.policy):
        yield from instances(family, state)
