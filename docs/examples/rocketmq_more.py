"""The policy rocketmq-5 with one of three further behaviours of RocketMQ, which the presets do not have."""

from longpoll_spec.custom import Specification, Step, assign

spec = Specification("rocketmq-5")
spec.knob("more", "fast_failure", "read_fails", "last_check")


def leaves(request, answered):
    """The request leaves every table, list and executor, and its pull is answered or waits forever."""
    numbers = [(each, 0) for each in (request.deadline, request.role_news, request.late, request.waited)]
    flags = (request.recheck_due, request.armed, request.orphan, request.closed, *([request.open] if answered else []))
    return [(request.phase, request.phases["idle"]), *numbers, *((each, False) for each in flags)]


@spec.action("request", urgent=False, thread="broker", exists=lambda state: state.knob("more") == "fast_failure")
def fast_failure(state, request):
    """If a woken pull waits too long in the executor, `BrokerFastFailure` removes the pull and answers SYSTEM_BUSY."""
    guard = request.is_("queued") & (request.copies > 0)
    return Step(guard, assign((request.copies, request.copies - 1), *leaves(request, True)))


@spec.action("request", urgent=False, thread="store", exists=lambda state: state.knob("more") == "read_fails")
def read_fails(state, request):
    """The future of a pull's first read fails, and no thread answers the pull."""
    return Step(request.is_("pulling"), assign(*leaves(request, False)))


@spec.action("request", urgent=False, thread="scanner", exists=lambda state: state.knob("more") == "last_check")
def last_check(state, request):
    """After a stop the scanner checks the bucket once more, and wakes a pull that has news or whose time is over."""
    wakes = state.has_more(request) | (request.deadline <= 0)
    guard = ~state.running & request.is_("held") & ~request.orphan & wakes & request.may_be_queued
    queued = (request.phase, request.phases["queued"]), (request.copies, request.copies + 1)
    return Step(guard, assign(*queued, (request.recheck_due, False), (request.armed, False)))
