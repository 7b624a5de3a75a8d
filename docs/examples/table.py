"""A hold table: a poll that finds no message waits in a list, and a message wakes every poll in the list."""

from longpoll_spec.custom import Specification, Step, assign, ite

spec = Specification(phases=("idle", "missed", "waiting"))
got = spec.number("got", "The number of messages that the client has.", "request")


@spec.action("request", urgent=False)
def poll(state, request):
    """A client polls. If there is a message it is answered at once, otherwise the poll has missed."""
    end, missed = state.queue.visible_end, got[request].is_(state.queue.visible_end)
    phase = ite(missed, request.phases["missed"], request.phases["idle"])
    effect = assign((request.phase, phase), (got[request], end), (request.deadline, state.hold_ticks))
    return Step(request.is_("idle"), effect)


@spec.action("request")
def wait(state, request):
    """The poll that missed is put into the list."""
    return Step(request.is_("missed"), assign((request.phase, request.phases["waiting"])))


@spec.action(thread="sender")
def wake(state):
    """The sender's thread answers every poll in the list."""
    phases = [(each.phase, ite(each.is_("waiting"), each.phases["idle"], each.phase)) for each in state.requests]
    ends = [(got[each], ite(each.is_("waiting"), state.queue.visible_end, got[each])) for each in state.requests]
    return Step(state.queue.due, assign((state.queue.due, False), *phases, *ends))


@spec.action("request")
def expire(state, request):
    """A waiting poll whose deadline has passed is answered without a message."""
    guard = request.is_("waiting") & (request.deadline <= 0)
    return Step(guard, assign((request.phase, request.phases["idle"])))


@spec.always
def no_lost_wakeup(state):
    """While a poll waits although there is a message for it, the sender's thread is about to wake it."""
    for each in state.requests:
        yield (each.is_("waiting") & (got[each] < state.queue.visible_end)).implies(state.queue.due)


@spec.leads_to("request")
def every_poll_is_answered(state, request):
    """Every poll is answered in the end."""
    return request.is_("waiting"), request.is_("idle")
