"""A group shares queues: pulls them, gives their messages to a listener or to a caller of `poll`, and commits."""
