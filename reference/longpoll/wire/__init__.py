"""Programs that speak RocketMQ's bytes to any broker: a load, a race, and a relay that fails."""
