"""Tables of administration: producers, queue locks, rates, timers."""
