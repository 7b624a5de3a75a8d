"""Kafka's purgatory for fetches: a fetch waits under a key for each of its partitions, and is answered once.

    longpoll check docs/examples/purgatory.py
    longpoll check docs/examples/purgatory.py --knob second_try=false

Source: `DelayedOperationPurgatory.tryCompleteElseWatch` and `checkAndComplete` of Apache Kafka 3.7. A partition is a
queue here.
"""

from longpoll_spec.custom import Specification, Step, all_of, any_of, assign, ite

spec = Specification(phases=("idle", "trying", "watching", "waiting"))
spec.knob("second_try", True, False)
spec.knob("complete_if", "not_completed", "always")
seen = spec.number("seen", "The number of messages of the queue that the client has.", "queue", "request")
watched = spec.flag("watched", "The queue's list of watchers has the fetch.", "queue", "request")
completed = spec.flag("completed", "Some thread has completed the fetch.", "request")
answers = spec.number("answers", "How often the fetch was answered.", "request", greatest=2)


def has_messages(state, request):
    return any_of(seen[queue, request] < queue.visible_end for queue in state.queues)


def completes(state, request, here):
    """Return the assignments by which a thread completes the fetch if `here` is true. Only the first thread does."""
    wins = here & ~completed[request] if state.knob("complete_if") == "not_completed" else here & (answers[request] < 2)
    ends = [(seen[each, request], ite(wins, each.visible_end, seen[each, request])) for each in state.queues]
    return (
        (completed[request], completed[request] | here),
        (answers[request], answers[request] + ite(wins, 1, 0)),
        *ends,
    )


@spec.action("request", urgent=False)
def fetch(state, request):
    """A client fetches from every partition, with a deadline."""
    effect = assign(
        (request.phase, request.phases["trying"]),
        (request.deadline, state.hold_ticks),
        (completed[request], False),
        (answers[request], 0),
    )
    return Step(request.is_("idle"), effect)


@spec.action("request")
def first_try(state, request):
    """The fetch's thread completes it if one of the partitions has messages for it, and otherwise begins to watch."""
    found = has_messages(state, request)
    phase = ite(found, request.phases["waiting"], request.phases["watching"])
    return Step(request.is_("trying"), assign((request.phase, phase), *completes(state, request, found)))


@spec.action("queue", "request")
def watch(state, queue, request):
    """The fetch's thread puts it into the list of one partition."""
    guard = request.is_("watching") & ~completed[request] & ~watched[queue, request]
    return Step(guard, assign((watched[queue, request], True)))


@spec.action("request")
def second_try(state, request):
    """A fetch that is in every list, or that another thread has completed, is tried once more; then its thread ends."""
    guard = request.is_("watching") & (completed[request] | all_of(watched[each, request] for each in state.queues))
    tries = has_messages(state, request) & ~completed[request] if state.knob("second_try") else any_of([])
    return Step(guard, assign((request.phase, request.phases["waiting"]), *completes(state, request, tries)))


@spec.action("queue", thread="appender")
def check_and_complete(state, queue):
    """The thread that appended takes every fetch that has messages out of the partition's list and completes it."""
    effects = [(queue.due, False)]
    for each in state.requests:
        ready = watched[queue, each] & has_messages(state, each)
        effects += [(watched[queue, each], watched[queue, each] & ~ready), *completes(state, each, ready)]
    return Step(queue.due, assign(*effects))


@spec.action("request", thread="timer")
def expire(state, request):
    """The timer completes a fetch whose deadline has passed."""
    guard = request.is_("waiting") & ~completed[request] & (request.deadline <= 0)
    return Step(guard, assign(*completes(state, request, guard)))


@spec.action("queue", "request", thread="reaper")
def purge(state, queue, request):
    """The reaper takes a completed fetch out of a partition's list."""
    guard = request.is_("waiting") & completed[request] & watched[queue, request]
    return Step(guard, assign((watched[queue, request], False)))


@spec.action("request")
def forget(state, request):
    """A completed fetch that is in no list is gone, and its client may fetch again."""
    in_a_list = any_of(watched[each, request] for each in state.queues)
    guard = request.is_("waiting") & completed[request] & ~in_a_list
    return Step(guard, assign((request.phase, request.phases["idle"]), (request.deadline, 0)))


@spec.always
def no_lost_wakeup(state):
    """While a fetch waits although a partition has messages for it, that partition's appender is about to check it."""
    for each in state.requests:
        for queue in state.queues:
            waits = each.is_("waiting") & ~completed[each] & (seen[queue, each] < queue.visible_end)
            yield waits.implies(queue.due)


@spec.always
def watched_everywhere(state):
    """A fetch that waits is in the list of every partition."""
    for each in state.requests:
        for queue in state.queues:
            yield (each.is_("waiting") & ~completed[each]).implies(watched[queue, each])


@spec.always
def answered_once(state):
    """A fetch is answered once if it is completed, and not at all before."""
    for each in state.requests:
        yield answers[each].is_(ite(completed[each], 1, 0))


@spec.no_step("tick")
def answered_by_deadline(state):
    """No time passes while a fetch is past its deadline."""
    for each in state.requests:
        yield ~each.is_("idle") & ~completed[each] & (each.deadline <= 0)


@spec.leads_to("request")
def every_fetch_is_answered(state, request):
    """Every fetch is answered in the end."""
    return request.is_("trying"), completed[request]
