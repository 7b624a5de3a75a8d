"""What tells one version's broker from another besides its hold table, derived from the policy's knobs in one place.

A policy that notices deadlines by a scan only is RocketMQ 4.9, and so answers as 4.9.7 was seen to. Leaves out the
knobs themselves (`longpoll_spec.policy`).
"""

from __future__ import annotations

from typing import Self

from attrs import frozen

from longpoll_spec.policy import Policy


@frozen
class Traits:
    """How a broker of this policy answers where the law says nothing."""

    commits_after_hold: bool
    """The offset that a pull carries along is stored after it was held, so that a fast wake may come before it."""
    woken_in_json: bool
    """A woken pull is answered in the server's default serialisation, not in the request's."""
    name_server_is_silent: bool
    """A name server does not answer what it does not know."""

    @classmethod
    def of(cls, policy: Policy) -> Self:
        """The traits of a policy."""
        is_4_9 = policy.expiry == "scan"
        return cls(commits_after_hold=is_4_9, woken_in_json=is_4_9, name_server_is_silent=is_4_9)
