"""A load harness that speaks RocketMQ's bytes and nothing more, so that it is not what limits a measured broker.

Frames are made once and patched, answers are cut and not decoded, and every connection of a throughput measurement is a
process of its own. Its own ceiling is measured against `trivial`, a server that answers without looking.

Leaves out starting the brokers that are compared, and the comparison (`model_tests/bench/broker_bench.py`).
"""
