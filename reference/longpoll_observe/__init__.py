"""A recording proxy, which relays bytes between RocketMQ clients and brokers unchanged, and writes a history.

- `relay_loop` relays the bytes of `links`; `arrival_time` bounds when they were sent.
- `tap` decodes the bytes; `events` converts commands to history events.
- `routes` redirects clients of a name server to the proxy; `name_lookup` resolves host names.
- `observer` combines these parts.

TLS is not supported. `longpoll_judge` judges the history.
"""

from longpoll_observe.observer import Observer

__all__ = ["Observer"]
