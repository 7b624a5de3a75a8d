"""A load harness that speaks only RocketMQ's bytes, so that it does not limit a measured broker.

Frames are made once and patched, and answers are cut but not decoded. Each connection of a throughput measurement is
a process. `trivial`, a server that answers without decoding, gives the harness's own limit.

`model_tests/bench/broker_bench.py` starts the brokers and compares them.
"""
