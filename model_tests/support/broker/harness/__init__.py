"""A load harness that works on raw bytes, so that the harness does not limit the measured broker.

Requests are encoded once and then patched; answers are split from the stream and not decoded. Each connection of a
throughput measurement has its own process. `trivial`, a server with constant answers, measures the harness's own limit.
Comparison of brokers: see `model_tests/bench/broker_bench.py`.
"""
