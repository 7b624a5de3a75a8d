"""One action of the specification, for you to change.

    longpoll check docs/lessons/mutant.py --bounds tiny --engine python --all

The unchanged action is the hold of `strict`, which violates no property. Change the guard or the effect, and run the
command again. The lesson is docs/lessons/12-your-own-mutant.md.
"""

from longpoll_spec.custom import FALSE, TRUE, Specification, Step, assign, ite  # noqa: F401 - two are for your change

spec = Specification("strict")


@spec.action("request")
def hold(state, request):
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
