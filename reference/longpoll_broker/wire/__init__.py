"""RocketMQ's remoting protocol without input or output: bytes in, commands out, and back.

`frame` cuts the stream, `command` reads and writes headers, `headers` gives their extension fields a type, `bodies` and
`message` do the same for what travels behind them, `connection` ties frame and command together.
Leaves out sockets, time and every decision of a broker or a client.
"""
