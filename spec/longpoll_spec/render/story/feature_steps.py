"""Steps whose words are the same wherever they happen: those of the law's aspects.

Leaves out the steps whose words depend on the state around them (`story`).
"""

from __future__ import annotations

from typing import Final

PLAIN: Final[dict[str, tuple[str, str, str]]] = {
    "scan_throws": ("store", "getMaxOffsetInQueue throws", "asks for maxOffset and gets an exception"),
    "find_bucket": ("bucket", "find the bucket", "looks the queue's bucket up in the table and has it in hand"),
    "sweep": ("bucket", "empty?", "looks whether the bucket that it has walked is empty"),
    "remove_bucket": ("bucket", "remove the bucket", "removes the bucket from the table, as it looked empty"),
    "return_look": ("bucket", "empty?", "looks whether the next bucket is empty, because the master is back"),
    "return_take": (
        "bucket",
        "take the bucket",
        "takes the bucket's list, to wake all in it because the master is back",
    ),
    "commit_pulled": ("store", "commit the pull's offset", "commits the offset that the pull carried when it was sent"),
    "offset_commit": ("store", "UPDATE_CONSUMER_OFFSET", "commits what it has handled, by a message of its own"),
    "offset_reset": ("store", "offset back to 0", "sets the group's committed offset back to the beginning"),
    "channel_closes": ("bucket", "channel closes", "goes away: its channel closes"),
    "trim": ("store", "delete the first message", "deletes the queue's first message, which is too old"),
    "truncate": ("store", "cut back by one", "cuts the queue back by its last message"),
    "queue_deleted": ("store", "delete the queue", "deletes the queue; one of the same name begins at 0"),
    "role_change": ("bucket", "slave becomes master", "makes the broker, a slave so far, master"),
    "master_returns": ("bucket", "master is back", "tells the broker, a slave, that its master is back"),
    "flush": ("store", "flush", "writes what was appended to disk"),
    "crash_and_recover": ("bucket", "crash and restart", "kills the broker and starts it anew with what is on disk"),
}
"""Action -> (whom it is done to, a few words for an arrow, the rest of a sentence after who acts)."""
