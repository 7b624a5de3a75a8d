"""Creates a history from packet captures of a broker's port (pcap, pcapng), with the proxy's tap.

- `capture_file` reads files into packets; `packets` extracts the broker's TCP segments.
- `tcp_stream` orders the bytes of one direction; `conversation` passes both to a tap.
- `clock` compares the capture's clock with the senders'.
- `reader` combines these parts.

TLS and fragmented IP packets are not supported. Commands: see `longpoll_observe.tap`.
"""

from longpoll_observe.capture.reader import CaptureReport, read_captures

__all__ = ["CaptureReport", "read_captures"]
