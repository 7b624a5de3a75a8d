"""A load harness that uses only RocketMQ's bytes, so that it does not limit a measured broker.

Frames are created once and patched; answers are split, not decoded. Each connection of a throughput measurement has its
own process. `trivial`, a server with constant answers, measures the harness's own limit. Comparison of brokers: see
`model_tests/bench/broker_bench.py`.
"""
