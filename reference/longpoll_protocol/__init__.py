"""RocketMQ's wire protocol without I/O: bytes in, values out, and back.

- `frames`: splits the stream into frames and reads commands, in both header encodings.
- `headers`: typed extension fields. `bodies` and `message`: typed bodies. `codes`: request and response codes.
- `log_record`: a message's record in the commit log. `properties`: message properties and delay levels.
- `tags`: tag hashes. `names`: topic and group names. `signature`: signatures of requests.
"""
