"""The background services: flushing, saving tables, removing expired files, delayed delivery."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from longpoll_broker.assembly.shared import SharedServices
from longpoll_broker.rocketmq.delay_levels import ScheduleService
from longpoll_broker.rocketmq.timers import TimerService
from longpoll_broker.upkeep.flush_service import FlushService
from longpoll_broker.upkeep.retention import Retention
from longpoll_broker.upkeep.table_saves import TableSaves


@frozen(eq=False)
class UpkeepServices:
    """The services, each with a thread; a slave delivers nothing."""

    flush: FlushService
    schedule: ScheduleService
    timer: TimerService | None
    saves: TableSaves
    is_slave: bool

    def start(self) -> None:
        """Start the threads."""
        self.flush.start()
        self.saves.start()
        if not self.is_slave:
            self.schedule.start()
            if self.timer is not None:
                self.timer.start()

    def stop_delivering(self) -> None:
        """Stop delayed delivery."""
        self.schedule.stop()
        if self.timer is not None:
            self.timer.stop()


def upkeep_services_of(
    shared: SharedServices,
    saves: TableSaves,
    retention: Retention,
    *,
    show_waiting: Callable[[], None],
    check_transactions: Callable[[], None],
    sample_rates: Callable[[], None],
    expire_calls: Callable[[], None],
) -> UpkeepServices:
    """Create the services; `show_waiting` makes scheduled messages visible, and those that failed before."""
    runtime, store, store_config = shared.runtime, shared.store, shared.store_config
    rounds = {
        "statistics": lambda: shared.statistics.sample(runtime.monotonic_ns() // 1_000_000),
        "rates": sample_rates,
        "members that do not answer": expire_calls,
        "open transactions": check_transactions,
        "what waits to be visible": show_waiting,
        "expired files": retention.run_if_due,
    }
    form = shared.traits.properties_form
    timer = TimerService(runtime, store, shared.appender, shared.timers, show_waiting, form, shared.timer_counts)
    return UpkeepServices(
        FlushService(runtime, store, saves.config_files, store_config.flush_interval_ms, each_round=rounds),
        ScheduleService(
            runtime, store, shared.appender, shared.delays, show_waiting, form, store_config.delay_levels_ms
        ),
        timer if shared.traits.serves_timers else None,
        saves,
        shared.standing.is_slave,
    )
