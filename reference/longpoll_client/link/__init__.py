"""Connections and routes without I/O: these modules have no lock, clock, socket or thread.

`exchange` is one connection with its waiting calls, `routes` has the routes of topics, and `steps` the exchanges with
brokers. The client on threads (`remoting`, `instance`) and the client on an event loop (`aio`) use these modules.
"""
