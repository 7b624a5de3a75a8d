"""A recording proxy: relays bytes unchanged between RocketMQ clients and brokers, and writes a history.

- `relay_loop` relays the bytes of `links`; `arrival_time` bounds when they were sent.
- `tap` decodes them; `events` converts commands to history events.
- `routes` redirects clients of a name server to the proxy; `name_lookup` resolves host names.
- `observer` combines these parts.

TLS is not supported. Judging: see `longpoll_judge`.
"""

from longpoll_observe.observer import Observer

__all__ = ["Observer"]
