"""A recording proxy: bytes pass unchanged between any RocketMQ clients and any broker, and a history is written.

`loop` moves the bytes of `links`, `arrival` says since when they can have been sent, `tap` reads them beside their way,
`untold` is what it has not read yet, `events` says what a command means for the history, `routes` leads clients of a
name server through the proxy, `names` looks brokers up, `observer` puts it together. Leaves out judging, and TLS.
"""

from longpoll_observe.observer import Observer

__all__ = ["Observer"]
