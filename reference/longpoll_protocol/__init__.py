"""RocketMQ's wire protocol without I/O: it decodes bytes to values and encodes values to bytes.

- `frames`: splits the stream into frames and reads commands, in both header encodings.
- `headers`, `admin_headers`: typed extension fields. `bodies`, `message`: typed bodies. `codes`: request and response
  codes.
- `log_record`: a message's record in the commit log. `properties`: properties, tag hashes and delay levels.
- `names`: topic and group names. `signature`: signatures of requests. `fast`: faster decoders and encoders with the
  same results.
"""
