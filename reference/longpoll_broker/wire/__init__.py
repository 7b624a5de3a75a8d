"""RocketMQ's remoting protocol without input or output: bytes in, commands out, and back.

`frame` cuts the stream; `command` reads and writes whole commands, with `json_header` and `rocketmq_header` for the two
encodings; `connection` ties them together. `headers` gives extension fields a type, `bodies` and `message` do the same
for what travels behind them, `codes` has the numbers.
Leaves out sockets, time and every decision of a broker or a client.
"""
