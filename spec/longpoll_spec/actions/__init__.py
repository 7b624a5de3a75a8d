"""The actions of the specification, one module per family, in the order in which a message and a pull meet them.

An action is one critical section, one store read, or one step of a thread between them. This is the coarsest
granularity at which every known finding still shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from longpoll_spec.actions import (
    channels,
    commits,
    crash,
    faults,
    notify,
    produce,
    pull,
    rewalk,
    role,
    run,
    scan,
    sweep,
    time,
    truncate,
    walk,
)
from longpoll_spec.actions.family import instances
from longpoll_spec.model import Action, Family
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
    notify.notify_start,
    notify.notify_each,
    notify.notify_end,
    scan.scan_start,
    scan.scan_each,
    scan.scan_end,
    rewalk.recheck_by_walk,
    rewalk.walk_start,
    rewalk.walk_each,
    rewalk.walk_end,
    walk.recheck_after_keep,
    sweep.sweep,
    sweep.remove_bucket,
    role.return_look,
    role.return_take,
    commits.commit_pulled,
    commits.offset_commit,
    commits.offset_reset,
    run.expire,
    run.run,
    time.tick,
    faults.executor_rejects,
    faults.notifier_throws,
    scan.scan_throws,
    channels.channel_closes,
    truncate.trim,
    truncate.truncate,
    truncate.queue_deleted,
    role.role_change,
    role.master_returns,
    crash.flush,
    crash.crash_and_recover,
    faults.stop,
)


def actions_of(state: State) -> Iterable[Action]:
    """Every action instance that the state's policy has, in the order of the spec."""
    for family in FAMILIES:
        yield from instances(family, state)
