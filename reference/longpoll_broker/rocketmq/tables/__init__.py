"""What administration knows by name: producers, locks of queues, rates, timers."""
