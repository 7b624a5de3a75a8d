"""A hold table: pulls wait here until a message comes or their time is up. Speaks the protocol of `longpoll dojo`."""

import json
import sys


class Table:
    def __init__(self):
        self.now_ms = 0
        self.logs = {}  # queue -> its messages
        self.held = []  # the pulls that wait
        self.closed = set()  # connections
        self.paused = {}  # id -> a handler that waits at a step point

    def pull(self, pull):
        pull["deadline_ms"] = self.now_ms + pull["wait_ms"]
        if self.look(pull):
            return
        yield "between_check_and_hold"
        if pull["connection"] in self.closed:
            return
        self.held.append(pull)
        yield "between_hold_and_recheck"
        self.wake(pull["queue"])  # a message that came before the hold woke no pull

    def arrive(self, message):
        self.logs.setdefault(message["queue"], []).append(message["message"])
        yield "between_append_and_wake"
        self.wake(message["queue"])

    def tick(self, _message):
        self.held = [pull for pull in self.held if not self.look(pull)]
        yield from ()

    def close(self, message):
        self.closed.add(message["connection"])
        self.held = [pull for pull in self.held if pull["connection"] != message["connection"]]
        yield from ()

    def wake(self, queue):
        self.held = [pull for pull in self.held if pull["queue"] != queue or not self.look(pull)]

    def look(self, pull):
        """Answer a pull, if there is something for it or its time is up."""
        messages = self.logs.get(pull["queue"], [])[pull["offset"] :]
        if not messages and self.now_ms < pull["deadline_ms"]:
            return False
        say({"answer": pull["id"], "messages": messages, "offset_next": pull["offset"] + len(messages)})
        return True


def say(line):
    print(json.dumps(line), flush=True)


table = Table()
for line in sys.stdin:
    message = json.loads(line)
    kind, number = message["type"], message["id"]
    if kind == "reset":
        table = Table()
    table.now_ms = message["now_ms"]
    if kind not in {"go", "reset"}:
        table.paused[number] = getattr(table, kind)(message)
    step = next(table.paused.get(number, iter(())), None)
    if step is None:
        table.paused.pop(number, None)
    say({"done": number} if step is None else {"at": step, "id": number})
