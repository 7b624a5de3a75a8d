"""One action of the specification, for you to change.

    python docs/lessons/mutant.py

Unchanged, it is the hold of `strict`, and no property is violated. Change the guard or the effect, and run it again.
The lesson is docs/lessons/12-your-own-mutant.md.
"""

from longpoll_spec.actions.family import action
from longpoll_spec.model import Step
from longpoll_spec.mutants.own_action import report
from longpoll_spec.state import Request, State, assign
from longpoll_spec.terms import FALSE, TRUE, ite  # noqa: F401 - two of them for your change


@action("request")
def hold(state: State, request: Request) -> Step:
    """The pull's thread puts the request that missed into the bucket, under the bucket's lock."""
    # GUARD
    guard = request.is_("missed") & state.lock_free_of(request)
    # EFFECT
    refused = ~state.running
    effect = assign(
        (request.phase, ite(refused, request.phases["idle"], request.phases["held"])),
        (request.open, request.open & ~refused),
        (request.deadline, ite(refused, 0, request.deadline)),
        (request.recheck_due, ~refused),
    )
    return Step(guard, effect)


if __name__ == "__main__":
    print(report(hold, policy="strict", bounds="tiny"))
