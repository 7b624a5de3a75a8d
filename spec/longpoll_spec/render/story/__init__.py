"""A counterexample told in sentences, as RocketMQ's people would."""
