"""The member of a consumer group on threads.

Exchanges with brokers (`link.steps`) run on the timer's thread. Only the start, the close and the user's calls run
their exchanges on the caller's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from longpoll_client.checks import Sql
from longpoll_client.consume.broker_requests import BrokerRequests
from longpoll_client.consume.group_member import NO_LISTENER, GroupMember, Listening
from longpoll_client.consume.puller import Batch
from longpoll_client.consume.rebalance import BUSY_RETRY_S
from longpoll_client.errors import AnswerTimeoutError, NoRouteError
from longpoll_client.instance import ClientInstance
from longpoll_client.lifecycle import State
from longpoll_client.link.exchange import CALL_TIMEOUT_S
from longpoll_client.link.steps import FindRoute, Steps
from longpoll_client.settings import MemberOptions
from longpoll_client.timer import Timer
from longpoll_protocol.bodies import SubscriptionData
from longpoll_runtime import Lock
from longpoll_spec.errors import LongpollError

T = TypeVar("T")


class Member(GroupMember):
    """Keeps this client in its group, and pulls its queues; `deliver` gets the messages.

    Invariant: an exchange that begins or gives up queues holds the lock `rebalancing`.
    """

    def __init__(
        self, options: MemberOptions, deliver: Callable[[Batch], None], listening: Listening = NO_LISTENER
    ) -> None:
        """See `GroupMember`."""
        runtime, config = options.runtime, options.config
        self.rebalancing: Lock = runtime.lock()
        self._instance = ClientInstance(
            runtime, options.name_server, client_id=config.client_id, credentials=options.credentials
        )
        self._timer = Timer(runtime, f"consumer-{config.group}")
        super().__init__(options, self._instance, self._timer, deliver, listening)
        self.broker_requests: BrokerRequests = BrokerRequests(self._instance, self, listening.direct)

    def run(self, steps: Steps[T]) -> T:
        """Run an exchange on this thread, and block until each answer; raises a LongpollError."""
        return self._instance.run(steps)

    def soon(self, make: Callable[[], Steps[object]], delay_s: float = 0.0, *, rebalances: bool = False) -> None:
        """See `GroupMember.soon`; the exchange runs on the timer's thread."""
        self._timer.after(delay_s, lambda: self._run_exclusively(make) if rebalances else self.run(make()))

    def _run_exclusively(self, make: Callable[[], Steps[object]]) -> None:
        """Run an exchange if no other exchange rebalances; otherwise try again soon.

        The timer's thread must not block, because that could cause a deadlock: a start that rebalances on its own
        thread may call `on_assigned`, which may close this member and wait for the timer's thread.
        """
        if not self.rebalancing.acquire(blocking=False):
            self._timer.after(BUSY_RETRY_S, lambda: self._run_exclusively(make))
            return
        with ExitStack() as stack:
            stack.callback(self.rebalancing.release)
            self.run(make())

    def subscribe(self, topic: str, expression: str) -> None:
        """See `GroupMember.subscribe`."""
        self.lifecycle.check_open()
        subscription = self.membership.make(topic, expression)
        if self.lifecycle.state is State.RUNNING and isinstance(expression, Sql):
            self.run(self._check_filter(subscription))
        self.membership.subscribe(subscription)
        self._subscription_changed()

    def _check_filter(self, subscription: SubscriptionData) -> Steps[None]:
        try:
            route = yield FindRoute(subscription.topic)
        except NoRouteError:
            # The topic does not exist yet; the member looks for it again later, as at the start.
            return
        yield from self.membership.check_filter(subscription, route)

    # ------------------------------------------------------------ life

    def start(self, then: Callable[[], None] = lambda: None) -> None:
        """Join the group, begin to pull, and then call `then`. The start fails if `then` fails.

        A failed start leaves nothing behind and may be tried again. Raises a ClientError if a name server or broker
        does not answer or refuses a filter, ConfigError, and LifecycleError if the member is started or closed.
        """
        self.lifecycle.begin()
        with ExitStack() as undo:
            undo.callback(self._undo_start)
            self.run(self.join())
            with self.rebalancing:
                self.run(self.rebalancer.rebalance())
            self._start_periods()
            then()
            undo.pop_all()

    def _undo_start(self) -> None:
        """Undo a failed start, so that no thread, connection or queue is left.

        Each step runs even if the step before it was interrupted.
        """
        with ExitStack() as undo:
            undo.callback(self.lifecycle.begin_failed)
            undo.callback(self._instance.disconnect)
            undo.callback(self._give_queues_up)
            undo.callback(self._timer.clear)

    def _give_queues_up(self) -> None:
        for queue in sorted(self.assigned_queues.pullers()):
            self.run(self.rebalancer.give_up(queue, stores=True))
        self.assigned_queues.announce()
        # No request is needed to leave the group, because the brokers notice the closed connections.
        self.started_ms = 0

    def close(self) -> None:
        """Stop pulling, store the offsets and leave the group, once. Errors are logged.

        Call `lifecycle.end` before this method.
        """
        self._timer.close()
        self.run(self.leave())
        self._instance.close()

    def store_now(self) -> None:
        """Store every changed offset on the timer's thread, and wait until that is done; raises a LongpollError."""
        stored, errors = self._runtime.event(), list[LongpollError]()

        def store() -> Steps[None]:
            errors.extend((yield from self.rebalancer.persist()))
            stored.set()

        self.soon(store, rebalances=True)
        if not stored.wait(CALL_TIMEOUT_S):
            raise AnswerTimeoutError(f"the offsets of group {self.config.group} are not stored yet; commit again")
        if errors:
            raise errors[0]
