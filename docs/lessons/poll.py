"""A long poll in a few lines, as many programs contain it, which sometimes loses a wakeup.

    python docs/lessons/poll.py

The lesson is docs/lessons/0-broken-threads.md.
"""

import sys
import threading
import time


class Mailbox:
    """Messages, and the polls that wait for one."""

    def __init__(self):
        self.messages = []
        self.waiting = []

    def put(self, message):
        """Add a message, and wake the waiting polls."""
        self.messages.append(message)
        for each in self.waiting:
            each.set()

    def poll(self, timeout_s):
        """Return the next message, or None if no message came in time."""
        if not self.messages:
            arrived = threading.Event()
            self.waiting.append(arrived)
            arrived.wait(timeout_s)
            self.waiting.remove(arrived)
        return self.messages.pop(0) if self.messages else None


def late_rounds(rounds):
    """Count the polls that slept although their message was there. Another thread sends one message to each poll."""
    late = 0
    for _ in range(rounds):
        box = Mailbox()
        sender = threading.Thread(target=box.put, args=("hello",))
        began = time.monotonic()
        sender.start()
        box.poll(timeout_s=0.2)
        sender.join()
        late += time.monotonic() - began > 0.15
    return late


if __name__ == "__main__":
    sys.setswitchinterval(1e-6)  # Python switches threads as often as it can.
    print(f"of 2000 polls {late_rounds(2000)} slept though their message was there")
