"""The fixed descriptions of steps, mostly those of the features.

Steps whose description depends on the state: see `story`.
"""

from __future__ import annotations

from typing import Final

PLAIN: Final[dict[str, tuple[str, str, str]]] = {
    "scan_throws": ("store", "getMaxOffsetInQueue throws", "asks for maxOffset and gets an exception"),
    "find_bucket": ("bucket", "find the bucket", "looks up the queue's bucket in the table"),
    "sweep": ("bucket", "empty?", "checks whether the bucket that it has traversed is empty"),
    "remove_bucket": ("bucket", "remove the bucket", "removes the bucket from the table, because it looked empty"),
    "return_look": ("bucket", "empty?", "checks whether the next bucket is empty, because the master is back"),
    "return_take": (
        "bucket",
        "take the bucket",
        "takes the bucket's list to wake all its requests, because the master is back",
    ),
    "commit_pulled": ("store", "commit the pull's offset", "commits the offset that the pull carried when it was sent"),
    "offset_commit": ("store", "UPDATE_CONSUMER_OFFSET", "sends an offset commit for the messages that it has handled"),
    "offset_reset": ("store", "offset back to 0", "sets the group's committed offset back to the beginning"),
    "channel_closes": ("bucket", "channel closes", "goes away: its channel closes"),
    "trim": ("store", "delete the first message", "deletes the queue's first message because of its age"),
    "truncate": ("store", "truncate by one", "truncates the queue by its last message"),
    "queue_deleted": ("store", "delete the queue", "deletes the queue; one of the same name begins at 0"),
    "role_change": ("bucket", "slave becomes master", "makes the broker, which was a slave, master"),
    "master_returns": ("bucket", "master is back", "tells the broker, a slave, that its master is back"),
    "flush": ("store", "flush", "writes the appended messages to disk"),
    "crash_and_recover": ("bucket", "crash and restart", "kills the broker and restarts it with the data on disk"),
}
"""Action -> (the key of the target, a few words for an arrow, the rest of a sentence after the actor)."""
