"""The broker that runs: sockets, threads and the processors that tie wire, core and store together.

`Broker.start` is the way in. Everything outside is reached through the `Runtime` that it is given. Leaves out the
command line.
"""
