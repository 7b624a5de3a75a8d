"""Properties of answers to pulls: known response codes, answer_is_right and answered_once.

An answer is right if a read of the store at some time between its request and the answer would have returned it. An
answer is a violation only if no such time exists. The rules are those of `DefaultMessageStore.getMessage` and
`PullMessageProcessor`:

code 0 FOUND: the messages in the body are exactly those in [offset, offset_next) that match by tag hash, and all were
visible. offset_next is the last message's offset plus 1 if the body is full or every message matches. If not,
offset_next may be higher, past messages that do not match. code 19 NO_NEW_MSG: at some time no matching message was
visible; offset_next is the requested offset. code 20 NO_MATCHED_MSG: offset_next has passed over at least one message,
and none of the passed messages matches. code 21 OFFSET_ILLEGAL: the offset lies outside the answer's own [offset_min,
offset_max], so an empty queue never returns this code for offset 0. offset_next is one of the two ends; after an offset
that is too high, offset_next is the lower end only if the lower end is 0, as in RocketMQ 4.9.

A refusal shows that the broker read nothing. A history usually cannot show whether a refusal was right
(`contract.pulls`). The judge skips pulls with SQL92 filters, pulls after an administrator reset the offset (5.x answers
21 although the offset is within the bounds), and pulls from slaves, which answer 20 where a master answers 19 or 21.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import numpy as np
from attrs import frozen

from longpoll_judge.columns.lookup import NEVER, Booleans, Integers, is_one_of
from longpoll_judge.contract.clause import COMPACTION_MS, PULL_REFUSALS, PULL_RESULTS, UNREMOVED_MS
from longpoll_judge.contract.result import ANSWER_IS_RIGHT, ANSWERED_ONCE
from longpoll_judge.kernel.case import (
    FOLLOWS,
    FOUND,
    NO_MATCHED_MSG,
    NO_NEW_MSG,
    OFFSET_ILLEGAL,
    Answers,
    Case,
    Explanation,
    Suspects,
    first_visible_before,
    matching_counts,
    pull_results,
    suspects,
    takes_everything,
    wrong_tags,
)
from longpoll_judge.kernel.holding import is_stopping, is_told_to_stop, may_have_stopped
from longpoll_judge.kernel.pulls import MS
from longpoll_spec.history import ABSENT

SYSTEM_ERROR: Final = 1
TAG: Final = "TAG"


def judge_codes(case: Case) -> list[Suspects]:
    """Judge the codes of the answers to pulls; the members of the returned suspects are indices of pulls."""
    pulls = case.pulls
    code = case.answer_code
    # Damaged answers do not count: the record lacks their code, or they may belong to another request.
    is_refused = case.is_answered & ~is_one_of(code, PULL_RESULTS)
    if not is_refused.any():
        return []
    strange = is_refused & ~is_one_of(code, PULL_REFUSALS)
    # A system error cannot be explained if the queue has a message, the subscription is by tag and the maximum count is
    # not negative.
    has_messages = (case.logs.base[pulls.log] < NEVER) | case.lives.is_neither[pulls.log]
    failed = is_refused & (code == SYSTEM_ERROR) & has_messages
    failed &= case.events.are("expression_type", pulls.row, {TAG}) & (pulls.count_max >= 0)

    def explain(pull: int) -> Explanation:
        rows = [int(pulls.row[pull]), int(pulls.answer_row[pull])]
        asked = f"a pull at offset {pulls.offset[pull]} was answered with code {code[pull]}"
        if strange[pull]:
            return Explanation("pull.code.known", f"{asked}, which no broker gives to a pull", rows)
        why = f"{asked}, a failure, although its queue has messages and its subscription is one of tags"
        return Explanation("pull.error.explained", why, rows)

    return suspects(ANSWER_IS_RIGHT, strange, failed, pulls.row, explain, timeless=True)


REMOVABLE: Final = ("pull.found.complete", "pull.passed.none_match")
"""Clauses that an answer may seem to violate because retention removed messages."""
TAG_SHOWN_MAX: Final = 80
"""The maximum length of a tag in a finding's sentence; the evidence has the whole tag."""
RestsOn = Literal["answer", "append", "visible"]
"""The events that a rule needs: the answer; the answer and its messages' appends; or these and when they became
visible."""
NUMBERS: Final = (
    *("next", "min", "max", "asked", "last", "body_count", "count_max", "matching_least", "end_least", "end_most"),
)
"""The columns of `Answers` with the numbers that a rule's sentence may show."""


@frozen(eq=False)
class Rule:
    """One condition of answer_is_right, with masks of the answers that violate it and the sentence for a finding."""

    clause: str
    broken: Booleans
    say: str | Callable[[int], str]
    """The end of a finding's sentence: a format string with names from `NUMBERS`, or a function of the answer's index.
    """
    needs_whole_record: bool = False
    """Whether an event that was not recorded could explain the answer."""
    doubted: Booleans | None = None
    """For each answer, whether an unknown cause could explain the answer."""
    may_follow: bool = False
    """Whether a slave that is behind its master may give the answer."""
    messages: Callable[[int], list[int]] = lambda _answer: []
    """Returns the messages by which an answer violates the rule, starting with the message at fault."""
    rests_on: RestsOn = "answer"
    """The recorded events on which the verdict by this rule depends."""


def judge_rightness(case: Case) -> list[Suspects]:
    """Judge the contents of the answers; each answer is reported for the first rule that it violates."""
    answers = pull_results(case)
    if not len(answers.pull):
        return []
    rules = [*_order(answers), *_found(answers), *_not_found(answers), *_bounds(answers), *_itself(answers)]
    # An excerpt shows one clause, and may lack the events that another clause about the same answer needs.
    rules = [rule for rule in rules if case.context.asks(rule.clause)]
    if not rules:
        return []
    # Apply the rules from last to first, so that the first violated rule remains.
    first_rule = np.full(len(answers.pull), -1, dtype=np.int64)
    for number, rule in reversed(list(enumerate(rules))):
        first_rule[rule.broken] = number
    # If the clock orders no events, report the clauses that need no times first.
    rows = case.pulls.row[answers.pull]
    unordered = case.are_unordered(rows)
    timeless = np.zeros((len(rules) + 1, len(rows)), dtype=np.bool_)
    for number, rule in reversed(list(enumerate(rules))) if unordered.any() else ():
        timeless[number] = case.are_timeless(rule.clause, rows) & unordered
        first_rule[rule.broken & timeless[number]] = number
    whole = case.is_log_whole(rows, answers.answered_before_ns)
    # An answer that violates no rule has the number -1, which selects the last rule; `is_broken` excludes such answers
    # below.
    weak = _weak_of(rules, first_rule, whole)
    # Report certain violations before violations that retention may explain.
    removable = np.array([rule.clause in REMOVABLE for rule in rules], dtype=np.bool_)[first_rule] & weak
    for number, rule in enumerate(rules if removable.any() else ()):
        better = rule.broken & removable & ~_weak(rule, whole)
        first_rule[better] = number
        removable &= ~better
        weak &= ~better
    is_broken = first_rule >= 0

    def explain(answer: int) -> Explanation:
        pull = int(answers.pull[answer])
        rows = [int(case.pulls.row[pull]), int(case.pulls.answer_row[pull])]
        rule = rules[int(first_rule[answer])]
        messages = rule.messages(answer)
        show = case.message_rows if rule.rests_on == "visible" else case.appended_rows
        log_rows = [row for offset in messages for row in show(int(answers.log[answer]), offset)]
        roots: list[int] | None = [] if rule.rests_on == "answer" else None
        return Explanation(rule.clause, _sentence(answers, rule, answer), rows, log_rows, messages, roots)

    stands = timeless[first_rule, np.arange(len(rows))]
    return suspects(ANSWER_IS_RIGHT, is_broken & ~weak, is_broken & weak, rows, explain, timeless=stands)


def _sentence(answers: Answers, rule: Rule, answer: int) -> str:
    if isinstance(rule.say, str):
        said = rule.say.format_map({name: getattr(answers, name)[answer] for name in NUMBERS})
    else:
        said = rule.say(answer)
    follows = FOLLOWS if rule.may_follow and answers.case.may_follow[answers.pull[answer]] else ""
    return f"the answer {answers.code[answer]} to a pull at offset {answers.asked[answer]} {said}{follows}"


def _weak(rule: Rule, whole: Booleans) -> Booleans:
    """Returns the answers that may violate a rule but do not certainly violate it."""
    weak = ~whole if rule.needs_whole_record else np.zeros_like(whole)
    return weak if rule.doubted is None else weak | rule.doubted


def _weak_of(rules: list[Rule], first_rule: Integers, whole: Booleans) -> Booleans:
    """Returns the answers for which the reported rule gives no certain verdict."""
    weak = np.zeros_like(whole)
    for number in np.unique(first_rule[first_rule >= 0]).tolist():
        weak |= (first_rule == number) & _weak(rules[number], whole)
    return weak


def _order(answers: Answers) -> list[Rule]:
    early = answers.answered_before_ns < answers.received_after_ns
    # All bodies are in one array. A pair of neighbours in this array that belong to different answers breaks no rule.
    follows = np.append(False, answers.body[1:] <= answers.body[:-1])[: len(answers.body)]
    follows[answers.body_first[answers.body_count > 0]] = False
    low = answers.body < answers.asked[answers.owner]
    is_found, carries = answers.code == FOUND, "carries {body_count} messages"
    many = answers.is_counted & (answers.body_count > answers.count_max)
    return [
        Rule("answer.after_request", early, "was sent before its request was received"),
        Rule("pull.found.some", is_found & (answers.body_count == 0), carries),
        Rule("pull.none.empty", ~is_found & (answers.body_count > 0), carries),
        Rule(
            "pull.found.ordered",
            answers.any_in_body(follows),
            "carries offsets out of order",
            messages=lambda answer: _flagged(answers, answer, follows),
        ),
        Rule(
            "pull.found.from_asked",
            answers.any_in_body(low),
            "carries messages before that offset",
            messages=lambda answer: _flagged(answers, answer, low),
        ),
        Rule("pull.found.at_most", many, f"{carries}, asked were at most {{count_max}}"),
    ]


def _bounds(answers: Answers) -> list[Rule]:
    # A 21 for a reset offset may tell no bounds.
    unbounded = (answers.code == OFFSET_ILLEGAL) & (answers.max == 0) & answers.case.is_outside[answers.pull]
    unbounded &= not answers.case.context.is_own
    told, beyond = answers.max > ABSENT, "but no more than {end_most} can have been visible"
    return [
        Rule(
            "pull.max.least",
            told & (answers.max < answers.end_least),
            "says offset_max {max}, but {end_least} was visible before its request came",
            doubted=_measured(answers) | answers.case.may_follow[answers.pull] | unbounded,
            may_follow=True,
            messages=lambda answer: [int(answers.end_least[answer]) - 1],
            rests_on="visible",
        ),
        Rule(
            "pull.max.most",
            told & (answers.max > answers.end_most),
            f"says offset_max {{max}}, {beyond}",
            needs_whole_record=True,
        ),
        Rule(
            "pull.min.below_max",
            told & ((answers.min > answers.max) | (answers.min < 0)),
            lambda answer: (
                f"says offset_min {answers.min[answer]}"
                + (f" above offset_max {answers.max[answer]}" if answers.min[answer] > answers.max[answer] else "")
            ),
        ),
        Rule(
            "pull.next.visible",
            is_one_of(answers.code, (FOUND, NO_MATCHED_MSG)) & (answers.next > answers.end_most),
            f"says offset_next {{next}}, {beyond}",
            needs_whole_record=True,
        ),
    ]


def _found(answers: Answers) -> list[Rule]:
    case, logs, log = answers.case, answers.case.logs, answers.log[answers.owner]
    is_found = answers.code == FOUND
    last = answers.last
    known = logs.is_known(log, answers.body)
    # Messages below the log's base may be older than the record, and an outside observer sees no appends.
    absent = ~known & (answers.body >= logs.base[log]) & logs.is_white_box[log]
    if absent.any():
        absent &= ~logs.may_be_there(log, answers.body)
    visible_after, _ = logs.visible_for_content(log, answers.body)
    # The message is wrong if even the latest time of the read is before the earliest time at which it was visible.
    unseen = visible_after > answers.answered_before_ns[answers.owner]
    # The tag of a message is unknown if the record lacks the message.
    wrong_tag = wrong_tags(answers) & known
    is_full = answers.is_counted & (answers.body_count >= answers.count_max)
    everything = takes_everything(answers)
    # A full body ends at its last message, and if every message matches, none is passed over. In any other case, the
    # answer may also have passed over messages without a match after the last message in its body.
    exact = is_found & (is_full | everything) & (answers.next != last + 1)
    back = is_found & (answers.next <= last)
    first, end = answers.asked, np.maximum(answers.next, answers.asked)
    matching_least = answers.matching_least
    # The answer passed over more matching messages than its body has, even by the lowest possible count.
    skipped = is_found & case.is_decidable[answers.pull] & (matching_least > answers.body_count)
    # Retention removes the oldest messages before the queue's minimum rises, so messages before the body may be gone.
    from_body = np.maximum(first, answers.first)
    is_gone = skipped & (not case.context.is_own)
    if is_gone.any():
        is_gone &= matching_counts(answers, from_body, np.maximum(end, from_body)) <= answers.body_count
        skipped &= ~(is_gone & (answers.first <= _removed_end(answers)))
        is_gone &= ~_are_young(answers, from_body)
    # Compaction removes messages in the middle of a log, but not the newest one.
    is_compacted = skipped & (not case.context.is_own)
    if is_compacted.any():
        visible_ns = logs.visible_for_content(answers.log, np.maximum(end - 1, 0))[1]
        is_compacted &= visible_ns < answers.received_after_ns - COMPACTION_MS * MS

    def say_next(answer: int) -> str:
        rule = f"the last message is {last[answer]}, so it must be {last[answer] + 1}"
        return f"says offset_next {answers.next[answer]}; {rule}"

    def left_out(answer: int) -> list[int]:
        """Return the offsets of matching messages, one more than the answer delivers, with undelivered ones first."""
        carried = set(_body(answers, answer))
        matching = _matching(answers, answer, int(first[answer]), int(end[answer]), len(carried) + 1)
        missing = sorted(matching, key=lambda offset: offset in carried)
        # Consider also the last matching message before the body, which may be too new to be removed.
        newest = answers.first[answer] - 1 if everything[answer] else max(set(matching) - carried, default=-1)
        return list(dict.fromkeys([*missing[: len(carried) + 1], *([int(newest)] if newest >= first[answer] else [])]))

    def say_skipped(answer: int) -> str:
        count = f"{matching_least[answer]} messages in [{first[answer]}, {end[answer]}) match"
        doubt = "; compaction may have removed some" if is_compacted[answer] else ""
        doubt = "; retention may have removed those before the first that it carries" if is_gone[answer] else doubt
        return f"carries {answers.body_count[answer]} messages although {count}{doubt}"

    def carries(clause: str, flags: Booleans, why: str, rests_on: RestsOn, *, needs_whole_record: bool = True) -> Rule:
        """Return the rule that no answer delivers a message marked in `flags`."""
        return Rule(
            clause,
            answers.any_in_body(flags),
            lambda answer: f"carries {_one(answers, answer, flags)}, {why}",
            needs_whole_record=needs_whole_record,
            messages=lambda answer: _flagged(answers, answer, flags)[:1],
            rests_on=rests_on,
        )

    return [
        carries("pull.found.visible", unseen, "which was not yet visible", "visible"),
        carries("pull.found.appended", absent, "which was never appended", "append"),
        carries("pull.found.tag", wrong_tag, "whose tag does not match", "append", needs_whole_record=False),
        Rule("pull.found.next", back | exact, say_next, messages=lambda answer: [int(last[answer])]),
        Rule(
            "pull.found.complete",
            skipped,
            say_skipped,
            doubted=is_gone | is_compacted,
            messages=left_out,
            rests_on="append",
        ),
    ]


def _not_found(answers: Answers) -> list[Rule]:
    case = answers.case
    visible_before = first_visible_before(answers)
    is_stopped, perhaps = is_told_to_stop(case, answers.pull)
    no_new, no_match = answers.code == NO_NEW_MSG, answers.code == NO_MATCHED_MSG
    # The status MESSAGE_WAS_REMOVING has code 20 too, so retention may have removed the messages that the answer passed
    # over.
    may_be_gone = no_match & (not case.context.is_own)
    removed = may_be_gone & (answers.next <= _removed_end(answers))
    may_be_gone &= ~_are_young(answers, answers.next) if may_be_gone.any() else True
    rolled = case.has_rolled[answers.pull]
    illegal = answers.code == OFFSET_ILLEGAL
    # An administrator may have reset the group's offset: RocketMQ 5 then answers 21 with the offset at which to
    # continue.
    may_be_reset = illegal & case.is_outside[answers.pull] & (not case.context.is_own)
    inside = (answers.asked >= answers.min) & (answers.asked <= answers.max)
    wrong_end = (answers.next != answers.min) & (answers.next != answers.max)
    # For an offset that is too high, the next offset is the end (in 4.9 also the minimum, if that is 0); for an offset
    # that is too low, the next offset is the minimum.
    wrong_end |= (answers.asked > answers.max) & (answers.next != answers.max) & (answers.min > 0)
    # If the record lacks a pull's offset, the offset is below 0 here.
    wrong_end |= (answers.asked < answers.min) & (answers.asked >= 0) & (answers.next != answers.min)
    return [
        Rule(
            "pull.none.true",
            no_new & (visible_before < answers.received_after_ns) & ~is_stopped,
            "says that there is nothing new, but a matching message was visible before the request came",
            doubted=_measured(answers) | perhaps | case.may_follow[answers.pull] | rolled,
            may_follow=True,
            messages=lambda answer: _first_matching(answers, answer),
            rests_on="visible",
        ),
        Rule(
            "pull.none.next",
            no_new & (answers.next != answers.asked),
            "says offset_next {next}; with nothing new it must be {asked}",
            doubted=rolled,
        ),
        Rule(
            "pull.passed.next",
            no_match & (answers.next <= answers.asked),
            "says offset_next {next}, so it passed over nothing",
            doubted=case.may_be_sent_away[answers.pull],
        ),
        Rule(
            "pull.passed.none_match",
            no_match & case.is_decidable[answers.pull] & (answers.matching_least > 0) & ~removed,
            lambda answer: (
                f"passes over {answers.matching_least[answer]} matching messages before offset_next "
                f"{answers.next[answer]}{'; retention may have removed them' if may_be_gone[answer] else ''}"
            ),
            doubted=may_be_gone,
            messages=lambda answer: _matching(
                answers, answer, int(answers.asked[answer]), int(answers.next[answer]), 1
            )[:1],
            rests_on="append",
        ),
        Rule(
            "pull.illegal.outside",
            illegal & inside,
            "calls the offset illegal, but it lies between offset_min {min} and offset_max {max}",
            doubted=may_be_reset,
        ),
        Rule(
            "pull.illegal.next",
            illegal & ~inside & wrong_end,
            "says offset_next {next}, which is not the end of the queue to go to, offset_min {min} or offset_max {max}",
            doubted=may_be_reset,
        ),
    ]


def _itself(answers: Answers) -> list[Rule]:
    """Returns the rules about fields of an answer that contradict other fields of the same answer."""
    low = answers.any_in_body(answers.body < answers.min[answers.owner])
    # These rules compare an answer with the queue's end in the same answer, so they need no record of the log.
    is_read = is_one_of(answers.code, (FOUND, NO_MATCHED_MSG))
    beyond = is_read & (answers.next > answers.max)
    # Code 19 means that the pull requested the end of the queue. A stopping broker may send code 19 without reading the
    # queue again.
    away = (answers.code == NO_NEW_MSG) & (answers.max != answers.asked)
    doubted = np.zeros_like(away)
    if away.any():
        stopping, perhaps = is_stopping(answers.case, answers.pull)
        away &= ~stopping
        doubted = perhaps | may_have_stopped(answers.case, answers.pull) | answers.case.has_rolled[answers.pull]
    return [
        Rule(
            "pull.found.above_min",
            low,
            "carries messages from before offset_min {min}, which it says",
            messages=lambda answer: _flagged(answers, answer, answers.body < answers.min[answers.owner]),
        ),
        Rule(
            "pull.next.within",
            beyond if answers.case.context.is_own else np.zeros_like(beyond),
            "says offset_next {next}, which is past offset_max {max}",
        ),
        Rule(
            "pull.found.within",
            is_read & ((answers.asked < answers.min) | (answers.asked >= answers.max)),
            "says offset_min {min} and offset_max {max}, and the offset does not lie between them",
            doubted=answers.case.may_be_sent_away[answers.pull],
        ),
        Rule(
            "pull.none.at_end",
            away,
            "says that there is nothing new, and offset_max {max}, which is not the offset that was asked for",
            doubted=doubted,
        ),
    ]


def _removed_end(answers: Answers) -> Integers:
    """Returns, for each answer, the offset below which retention has removed messages of the queue at some time."""
    return answers.case.removed_end[answers.case.events.queue[answers.case.pulls.row[answers.pull]]]


def _are_young(answers: Answers, end: Integers) -> Booleans:
    """Whether the last message that each answer passed over before `end` is too new for retention to remove."""
    found, logs = np.zeros(len(end), dtype=np.bool_), answers.case.logs
    expressions = answers.case.pulls.expression[answers.pull]
    for code, matching in enumerate(answers.case.matchings):
        if matching is not None:
            mine = np.flatnonzero(expressions == code)
            log, offsets = answers.log[mine], matching.offsets
            place = offsets.below(log, end[mine]) - 1
            offset = np.where(place >= offsets.bounds[log], np.append(offsets.numbers, -1)[place], -1)
            after_ns, _before_ns = logs.growth.visible_between(log, offset)
            is_new = (after_ns > answers.answered_before_ns[mine] - UNREMOVED_MS * MS) & (after_ns < NEVER)
            found[mine] = is_new & (offset >= answers.asked[mine])
    return found


def _measured(answers: Answers) -> Booleans:
    """Returns the answers for which "certainly visible before" depends on a duration by a clock that may be set.

    If the observer is outside the broker, a message counts as certainly visible only some time after its
    acknowledgement.
    """
    case = answers.case
    settable = case.events.are("source", case.pulls.row[answers.pull], case.context.settable)
    return settable & ~case.logs.is_white_box[answers.log]


def _body(answers: Answers, answer: int) -> list[int]:
    first = int(answers.body_first[answer])
    offsets: list[int] = answers.body[first : first + int(answers.body_count[answer])].tolist()
    return offsets


def _flagged(answers: Answers, answer: int, flags: Booleans) -> list[int]:
    first = int(answers.body_first[answer])
    mine = slice(first, first + int(answers.body_count[answer]))
    offsets: list[int] = answers.body[mine][flags[mine]].tolist()
    return offsets


def _one(answers: Answers, answer: int, flags: Booleans) -> str:
    offset = _flagged(answers, answer, flags)[0]
    rows = answers.case.appended_rows(int(answers.log[answer]), offset)
    tag = answers.case.events.text("tag", rows[0])[:TAG_SHOWN_MAX] if rows else ""
    return f"message {offset} (tag {tag!r})" if tag else f"message {offset}"


def _matching(answers: Answers, answer: int, first: int, end: int, most: int) -> list[int]:
    """Returns the first `most` offsets in [first, end) whose messages certainly match the subscription of `answer`."""
    matching = answers.case.matchings[int(answers.case.pulls.expression[answers.pull[answer]])]
    assert matching is not None, "only what tags decide is asked for this"
    if matching.expression.takes_everything:
        return list(range(first, min(end, first + most)))
    log = np.full(2, answers.log[answer])
    offsets: list[int] = matching.offsets.numbers[
        slice(*matching.offsets.below(log, np.array([first, end], dtype=np.int64)).tolist())
    ].tolist()
    return offsets


def _first_matching(answers: Answers, answer: int) -> list[int]:
    pull = int(answers.pull[answer])
    matching = answers.case.matchings[int(answers.case.pulls.expression[pull])]
    assert matching is not None, "only what tags decide is asked for this"
    only = slice(pull, pull + 1)
    first: list[int] = matching.first(answers.case.pulls.log[only], answers.case.pulls.offset[only]).tolist()
    return first


def judge_order(case: Case) -> list[Suspects]:
    """Judge whether a request was answered before it was received.

    Members of the returned suspects are positions among the judged answers. `judge_rightness` reports the same
    violation for answers to a pull that was read.
    """
    events, pulls = case.events, case.pulls
    rows = events.rows("answer_sent")
    read = pulls.answer_row[is_one_of(case.answer_code, PULL_RESULTS)]
    if len(read) == len(rows):
        return []
    is_left = np.ones(len(events), dtype=np.bool_)
    is_left[read] = False
    # Skip the answers that `judge_rightness` reports, and damaged answers, which may belong to another request.
    rows = rows[(events.request_key[rows] >= 0) & is_left[rows] & ~case.is_damaged[rows]]
    asked = events.answer_to(events.request_key[rows], "request_received")
    early = (asked >= 0) & (events.integers("before_ns", rows) < events.integers("after_ns", asked))

    def explain(place: int) -> Explanation:
        code = int(events.integers("code", rows)[place])
        why = f"the answer {code} was sent before its request was received"
        return Explanation("answer.after_request", why, [int(asked[place]), int(rows[place])])

    return suspects(ANSWER_IS_RIGHT, early, np.zeros_like(early), rows, explain)


def judge_once(case: Case) -> list[Suspects]:
    """Judge whether any request, not only a pull, was answered twice.

    Members of the returned suspects are positions among the first answers. The verdict is not certain if the receipt of
    the request is not in the record.
    """
    rows = case.events.rows("answer_sent")
    if not case.events.has_repeated("answer_sent"):
        return []
    # A damaged event may not be an answer, or may answer another request.
    rows = rows[(case.events.request_key[rows] >= 0) & ~case.is_damaged[rows]]
    first = case.events.firsts(rows, "answer_sent")
    # For each answer, `first` is the first answer to the same request, which may be the answer itself.
    twice = np.unique(first[first < rows])
    if len(twice):
        # If an identifier was received twice, each answer may belong to another request.
        twice = twice[~case.events.is_asked_again(twice)]
    # Without a recorded receipt, two requests may have had the same identifier.
    is_asked = case.events.is_told_anywhere(twice, "request_received")

    def explain(place: int) -> Explanation:
        keys, row = case.events.request_key, int(twice[place])
        same = rows[keys[rows] == keys[row]].tolist()
        received = case.events.rows("request_received")
        asked = received[keys[received] == keys[row]].tolist()
        return Explanation("answer.once", f"one request has {len(same)} answers", [*asked, *same])

    return suspects(ANSWERED_ONCE, is_asked, ~is_asked, twice, explain, timeless=True)
