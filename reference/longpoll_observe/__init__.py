"""A recording proxy: bytes pass unchanged between any RocketMQ clients and any broker, and a history is written.

`relay_loop` moves the bytes of `links`, `arrival_time` says since when they can have been sent, `tap` reads them beside
their way, `tap_queue` is what it has not read yet, `events` says what a command means for the history, `routes` leads
clients of a name server through the proxy, `name_lookup` looks brokers up, `observer` puts it together. Leaves out
judging, and TLS.
"""

from longpoll_observe.observer import Observer

__all__ = ["Observer"]
