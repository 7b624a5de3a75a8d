"""The properties of the pull path, with one module per subject.

Every property is a term over the state. `reachability` has the states that must be reached, so that no property holds
vacuously.
"""

from __future__ import annotations

from typing import Final

from longpoll_spec.properties.answers import (
    answer_is_right,
    answered_on_stop,
    answered_once,
    dropped_by_reject,
    dropped_by_throw,
    nothing_dropped,
    nothing_skipped,
    offset_goes_on,
)
from longpoll_spec.properties.deadlines import (
    answered_by_deadline,
    deadline_is_its_pulls,
    no_lost_deadline,
    not_answered_early,
    queued_by_deadline,
)
from longpoll_spec.properties.features import (
    buckets_are_swept,
    closed_is_let_go,
    commit_in_queue,
    commit_never_regresses,
    hold_limit_kept,
    moved_is_told,
    no_orphan,
    only_disk_survives,
    return_is_whole,
    seen_survives,
    told_of_master_return,
    told_of_role_change,
)
from longpoll_spec.properties.order import (
    lists_have_owners,
    round_is_whole,
    stays_in_range,
    table_is_tidy,
    visible_is_monotone,
)
from longpoll_spec.properties.progress import time_can_pass
from longpoll_spec.properties.statement import Text
from longpoll_spec.properties.wakeups import lost_by_hold, lost_by_keep, no_lost_wakeup, woken_within

ALWAYS: Final[tuple[Text, ...]] = (
    no_lost_wakeup,
    lost_by_hold,
    lost_by_keep,
    deadline_is_its_pulls,
    queued_by_deadline,
    answered_by_deadline,
    not_answered_early,
    woken_within,
    no_lost_deadline,
    answered_once,
    answer_is_right,
    offset_goes_on,
    nothing_skipped,
    nothing_dropped,
    dropped_by_reject,
    dropped_by_throw,
    answered_on_stop,
    visible_is_monotone,
    table_is_tidy,
    round_is_whole,
    no_orphan,
    buckets_are_swept,
    commit_never_regresses,
    commit_in_queue,
    hold_limit_kept,
    closed_is_let_go,
    moved_is_told,
    seen_survives,
    only_disk_survives,
    told_of_role_change,
    told_of_master_return,
    return_is_whole,
    time_can_pass,
)
INDUCTIVE: Final[tuple[Text, ...]] = (lists_have_owners, stays_in_range)
