"""The services for pulls: reading, holding, notifying and running again.

Created in the order of dependencies: runner, executor, hold table, processor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import frozen

from longpoll_broker.assembly.shared import SharedServices
from longpoll_broker.fast.pull_bursts import QuickPullProcessor
from longpoll_broker.fast.pull_heads import PatchedPullAnswers, tells_offsets_only
from longpoll_broker.fast.woken_herd import HerdExecutor, HerdRunner
from longpoll_broker.hold.dispatch_service import DispatchService
from longpoll_broker.hold.executors import InlineExecutor, LaterRuns, PoolExecutor
from longpoll_broker.hold.hold_service import HoldService
from longpoll_broker.hold.hold_table import Pull
from longpoll_broker.hold.offset_moved import OffsetMovedEvents
from longpoll_broker.hold.pull_answers import PullAnswers
from longpoll_broker.hold.pull_processor import PullProcessor
from longpoll_broker.hold.pull_runner import PullRunner, nobody_is_told
from longpoll_broker.hold.scan_service import ScanService
from longpoll_broker.io.channel import Outbox
from longpoll_broker.io.processors import Processor
from longpoll_broker.rocketmq.accounts.access_control import AccessControl
from longpoll_broker.rocketmq.admin.role_processor import RoleProcessor

SHORT_SCAN_MS = 1_000
"""Interval between scans of the table while long polling is off, ms (`shortPollingTimeMills`)."""


@frozen(eq=False)
class PullServices:
    """The services, and the threads that some policies need."""

    runner: PullRunner
    pool: PoolExecutor | None
    inline: InlineExecutor | None
    """Runs pulls if there is no pool."""
    hold_service: HoldService
    pull_processor: PullProcessor
    roles: RoleProcessor
    dispatch_service: DispatchService
    scan: ScanService | None

    @property
    def processors(self) -> Mapping[int, Processor]:
        """The processors of all these services."""
        return {**self.pull_processor.processors, **self.roles.processors}

    def start(self, dispatcher_sleep_ms: int) -> None:
        """Start the threads."""
        if self.dispatch_service.polls:
            self.dispatch_service.start(dispatcher_sleep_ms)
        if self.pool is not None:
            self.pool.start()
        if self.scan is not None:
            self.scan.start()

    def queue(self) -> tuple[int, int]:
        """Returns the number of pulls waiting for a thread, and the first one's waiting time, ms."""
        return (0, 0) if self.pool is None else self.pool.waiting()

    @property
    def has_more(self) -> bool:
        """Whether released pulls, or those of closed channels, wait for a loop's next pass."""
        return self.hold_service.has_more or (self.inline is not None and self.inline.has_more)

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Set the function that wakes a sleeping loop for its next pass."""
        if self.inline is not None and self.inline.later is not None:
            self.inline.later.wake = wake

    def turn(self, outbox: Outbox) -> None:
        """End a loop's pass: drop or run some of the waiting pulls."""
        self.hold_service.turn()
        if self.inline is not None:
            self.inline.turn(outbox)

    def finish(self, outbox: Outbox) -> None:
        """Answer held pulls as the policy says, and run those waiting for a pass; call when no notifier runs."""
        self.hold_service.stop(outbox)
        if self.inline is not None:
            self.inline.finish(outbox)

    def stop_notifying(self) -> None:
        """Stop everything that could take pulls from the table or put them back; queued pulls run."""
        if self.scan is not None:
            self.scan.stop()
        self.dispatch_service.stop()
        if self.pool is not None:
            self.pool.stop()

    def topic_deleted(self, topic: str, outbox: Outbox) -> None:
        """Answer the pulls of a deleted topic; RocketMQ answers them at the scan after their deadline."""
        self.runner.forget_last()
        if self.pull_processor.policy.on_truncate == "wake":
            self.hold_service.topic_deleted(topic, outbox)


def pull_services_of(shared: SharedServices, access: AccessControl | None = None) -> PullServices:
    """Create the services."""
    runtime, policy, config = shared.runtime, shared.policy, shared.config
    runner = _runner(shared, access)
    pool = _pool(shared, runner) if policy.notify == "dispatcher_poll" else None
    inline = _inline(shared, runner) if pool is None else None
    executor = pool or inline
    assert executor is not None
    hold_service = HoldService(
        runtime,
        policy,
        shared.store,
        executor,
        refuse=runner.refuse,
        held_count_max=config.held_count_max,
        queue_held_count_max=config.queue_held_count_max,
        events=shared.recording.pulls,
    )
    processor = QuickPullProcessor if shared.is_fast else PullProcessor
    scan_period_ms = config.scan_period_ms if config.long_polling else SHORT_SCAN_MS
    return PullServices(
        runner,
        pool,
        inline,
        hold_service,
        processor(runtime, policy, config, shared.desk, shared.offsets, runner, hold_service, shared.recording.pulls),
        RoleProcessor(
            shared.standing,
            shared.traits,
            hold_service,
            config.broker_name,
            config.slave_acting_master,
            policy.on_master_return == "answer",
        ),
        _dispatch_service(shared, hold_service),
        ScanService(runtime, hold_service, scan_period_ms) if policy.expiry == "scan" else None,
    )


def _runner(shared: SharedServices, access: AccessControl | None) -> PullRunner:
    events, desk = shared.recording.pulls, shared.desk
    is_fast = shared.is_fast and tells_offsets_only(desk)
    answers = PatchedPullAnswers(desk, events) if is_fast else PullAnswers(desk, events)
    moved: Callable[[Pull, int], None] = nobody_is_told
    if shared.traits.stores_moved_offsets and not shared.standing.is_slave:
        moved = OffsetMovedEvents(shared.runtime, shared.appender, shared.config.broker_name, shared.store_host).tell
    # Accounts may get different answers.
    kind = HerdRunner if is_fast and not shared.recording.is_on and access is None else PullRunner
    return kind(
        shared.runtime,
        shared.policy,
        desk,
        shared.store,
        shared.statistics,
        events,
        answers,
        offset_moved=moved,
        may_still_pull=None if access is None else access.may_still_pull,
    )


def _inline(shared: SharedServices, runner: PullRunner) -> InlineExecutor:
    later = LaterRuns(shared.runtime.lock())
    if isinstance(runner, HerdRunner):
        return HerdExecutor(runner.run, later, run_alike=runner.run_alike)
    return InlineExecutor(runner.run, later)


def _pool(shared: SharedServices, runner: PullRunner) -> PoolExecutor:
    config = shared.config
    return PoolExecutor(
        shared.runtime,
        runner.run,
        runner.refuse,
        config.pull_thread_count,
        config.pull_queue_capacity,
        config.pull_wait_ms_max if config.fast_failure else None,
    )


def _dispatch_service(shared: SharedServices, hold_service: HoldService) -> DispatchService:
    policy = shared.policy
    return DispatchService(
        shared.runtime,
        shared.store,
        hold_service,
        shared.recording.pulls,
        notifies=shared.config.long_polling and (not shared.standing.is_slave or shared.traits.slave_notifies),
        polls=policy.notify == "dispatcher_poll",
        in_batches=policy.notify_grain == "batch",
        before_visible=policy.notify == "before_visible",
        passes_idle=policy.empty_shortcut,
        makes_durable=shared.store_config.visible_when_durable,
    )
