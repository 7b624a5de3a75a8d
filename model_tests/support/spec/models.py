"""Models by the names of their policy and bounds."""

from __future__ import annotations

from longpoll_spec.bounds import named
from longpoll_spec.model import Model
from longpoll_spec.policy import policy_named
from longpoll_spec.specification import specification_of


def model_named(policy_name: str, bounds: str = "tiny", *, requests: int | None = None) -> Model:
    """Returns the model of a policy, such as `strict+recheck=walk`, within bounds; `requests` overrides theirs.

    Raises what `policy_named` and `named` raise.
    """
    policy = policy_named(policy_name)
    return specification_of(policy, named(bounds, policy, requests=requests))
