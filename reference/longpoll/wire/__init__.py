"""Programs that speak RocketMQ's protocol to any broker: a load, a race, and a relay that fails on request."""
