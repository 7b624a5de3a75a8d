"""Summaries of the parts of a queue's log that are not loaded. `windows` makes them and `window_sweep` uses them."""

from __future__ import annotations

from attrs import frozen

from longpoll_judge.columns.queue_log import BEGINNING, NEVER


@frozen
class Gap:
    """A summary of a queue's log between two loaded parts."""

    reach: int
    """It shows no offset below this."""
    begins_ns: int
    """Nothing that it shows happened before this moment."""
    ended_ns: int
    """All that it, or what lies before both pieces, shows happened at this moment or before."""
    floor: int
    """Neither it nor what lies before both pieces shows an offset at or above this, or a higher visible end."""


@frozen
class Outlook:
    """A summary of one queue's log outside a window and its neighbours."""

    is_white_box: bool
    """Whether visibility was seen from within the broker, anywhere."""
    first_known: int
    """The first offset whose message was seen anywhere; `NEVER` when none was."""
    first_before: int = NEVER
    """The first offset whose message earlier windows show; `NEVER` when they show none."""
    floor: int = BEGINNING
    """Earlier windows show no offset at or above this, and no higher visible end."""
    end_before: int = 0
    """The highest visible end that they show."""
    ended_before_ns: int = BEGINNING
    """All that they show of the log happened at this moment or before."""
    reach: int = NEVER
    """Later windows show no offset below this."""
    begins_after_ns: int = NEVER
    """Nothing that they show of the log happened before this moment."""
    gap: Gap | None = None
    """What lies between the piece around an offset and the piece around a moment, where these are apart. Then all but
    `floor` that is told here of earlier windows is of the gap as well."""
