"""Programs that speak RocketMQ's bytes to any broker: a property suite, a load, a race, and a relay that fails."""
