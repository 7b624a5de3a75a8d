"""What a connection and a name server's answers come to, as plain values: no lock, no clock, no socket, no thread.

`calls` are the calls that wait, `exchange` is one connection, `routes` is what is known of topics. The client on
threads (`remoting`, `instance`) and the one on an event loop (`aio`) both stand on them.
"""
