"""Cuts a short piece of one queue out of a recorded history, to be kept as a fixture.

    python model_tests/judge/cut_recording.py HISTORY TOPIC QUEUE REQUEST COUNT OUT

Keeps the exchange of the pull REQUEST and of COUNT pulls of its queue before and after it, with the messages
acknowledged meanwhile and the lives of their connections, and numbers the events anew. Leaves out choosing the piece.
"""

from __future__ import annotations

import sys
from pathlib import Path

from longpoll_judge.testing.generate import write
from longpoll_judge.testing.recording import Recording, change, load
from longpoll_spec.history import Event


def cut(recording: Recording, topic: str, queue: int, request: str, count: int) -> list[Event]:
    """The piece around one request; of one source."""
    here = [pair for pair in recording.exchanges() if (pair[0].topic, pair[0].queue) == (topic, queue)]
    (place,) = (number for number, (asked, _answer) in enumerate(here) if asked.request == request)
    kept = here[max(0, place - count) : place + count + 1]
    first_ns = min(asked.after_ns for asked, _answer in kept)
    last_ns = max(answer.before_ns for _asked, answer in kept)
    connections = {asked.connection for asked, _answer in kept}
    whole = {event.sequence for pair in kept for event in pair}

    def is_kept(event: Event) -> bool:
        if event.event in {"source_started", "source_stopped"} or event.sequence in whole:
            return True
        if event.event in {"connection_opened", "connection_closed"}:
            return event.connection in connections
        is_here = (event.event, event.topic, event.queue) == ("message_acknowledged", topic, queue)
        return is_here and first_ns <= event.after_ns and event.before_ns <= last_ns

    found = [event for event in recording.events if is_kept(event)]
    return [change(event, sequence=number) for number, event in enumerate(found)]


def main() -> None:
    """Cut as the arguments say."""
    history, topic, queue, request, count, out = sys.argv[1:]
    recording = load(Path(history))
    write(Path(out), cut(recording, topic, int(queue), request, int(count)), recording.meta)


if __name__ == "__main__":
    main()
