"""Describes a finding in words: its subject, and the findings with the same cause. `page` makes the HTML page."""

from __future__ import annotations

from typing import Final

from longpoll_judge.contract.result import Finding

MESSAGES_SHOWN_MAX: Final = 5
TAG_SHOWN_MAX: Final = 80
REQUESTS_SHOWN_MAX: Final = 10


def told_of(finding: Finding) -> str:
    """Describes the messages, the tag, the offsets, the codes and the client of a finding."""
    messages = ", ".join(map(str, finding.messages[:MESSAGES_SHOWN_MAX]))
    more = len(finding.messages) - MESSAGES_SHOWN_MAX
    parts = [f"message {messages}" + (f" and {more} more" if more > 0 else "")] if messages else []
    parts += [f"tag {finding.tag[:TAG_SHOWN_MAX]!r}"] if finding.tag else []
    parts += [f"{name} {value}" for name, value in finding.offsets.items()]
    parts += [f"{name} {value}" for name, value in finding.codes.items()]
    about = {"group": finding.group[:TAG_SHOWN_MAX], "connection": finding.connection, "at": finding.time}
    parts += [f"{name} {value}" for name, value in about.items() if value]
    broker = next((event["broker"] for event in finding.evidence if event.get("broker")), "")
    # Look for the message's own event, because a pop of all queues names no queue, and offsets in the retry topic are
    # not offsets in the topic.
    placed = [event for event in finding.evidence if event.get("queue_offset") in finding.messages[:1]]
    queue = next((event["queue"] for event in placed if finding.queue < 0), finding.queue)
    if messages and broker and not any(event.get("cause") == "retry" for event in placed):
        where = f"-b {broker} -t {finding.topic} -i {queue} -o {finding.messages[0]}"
        parts.append(f"see mqadmin queryMsgByOffset {where}")
    return ", ".join(parts)


def followed_by(finding: Finding) -> list[str]:
    """Returns the findings with the same cause, one line for each clause."""
    return [
        f"follows from it: {each.count} of {each.clause} {each.verdict} in {each.topic}/{each.queue}"
        + (f" ({', '.join(each.requests[:REQUESTS_SHOWN_MAX])})" if each.requests else "")
        for each in finding.follows
    ]


def clean(text: str) -> str:
    """Returns the text without characters that XML cannot contain or that change the direction of the text."""
    return "".join(letter if letter.isprintable() or letter in "\t\n" else " " for letter in text)
