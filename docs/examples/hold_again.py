"""The policy strict with another executor, which puts a rejected request back into the bucket instead of answering."""

from longpoll_spec.custom import Specification, Step, assign

spec = Specification("strict")
spec.knob("on_reject", "hold_again")


@spec.action("request", urgent=False, thread="executor")
def executor_rejects(state, request):
    """The executor rejects a woken request, and the thread that woke it puts it back into the bucket."""
    guard = request.is_("queued") & state.lock_free_of(request)
    effect = assign((request.phase, request.phases["held"]), (request.copies, request.copies - 1))
    return Step(guard, effect)
