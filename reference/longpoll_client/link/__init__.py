"""The parts of a connection and of routes without I/O: no lock, clock, socket or thread.

`exchange` is one connection with its waiting calls, `routes` are the routes of topics, `steps` are exchanges with
brokers. The client on threads (`remoting`, `instance`) and the one on an event loop (`aio`) use them.
"""
