"""Describe a counterexample in sentences, in RocketMQ's terms."""
