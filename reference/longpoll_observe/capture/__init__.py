"""A history from captures of a broker's port, with the tap that the proxy has: pcap and pcapng, read after the fact.

`capture_file` reads files into packets, `packets` finds the broker's TCP segments in them, `tcp_stream` puts one
direction's bytes in order, `conversation` tells a tap of both, `clock` checks the capture's clock against the senders',
`reader` puts it together. Leaves out what a command means (`longpoll_observe.tap`), TLS, and fragments of IP packets.
"""

from longpoll_observe.capture.reader import CaptureReport, read_captures

__all__ = ["CaptureReport", "read_captures"]
