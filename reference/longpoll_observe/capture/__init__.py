"""Creates a history from packet captures of a broker's port (pcap, pcapng). Uses the proxy's tap to decode the bytes.

- `capture_file` reads the broker's TCP segments from files.
- `conversation` orders the bytes of both directions, passes them to a tap, and checks the capture's clock.
- `reader` combines these parts.

TLS and fragmented IP packets are not supported. Commands: see `longpoll_observe.tap`.
"""

from longpoll_observe.capture.reader import CaptureReport, read_captures

__all__ = ["CaptureReport", "read_captures"]
