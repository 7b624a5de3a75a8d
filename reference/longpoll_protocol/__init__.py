"""RocketMQ's bytes and names without input or output: bytes in, values out, and back.

`frames` cuts the stream and reads whole commands, in both encodings. `headers` gives extension fields a type, `bodies`
and `message` do the same for what travels behind them, `codes` has the numbers. `log_record` is a message as it stands
in a commit log, `properties` its properties in Java's order and the levels of its delay, `tags` the hash of a
tag, `names` what topics and groups may be called, `signature` who signs a request.
Leaves out sockets, files, time, and every decision of a broker or a client.
"""
