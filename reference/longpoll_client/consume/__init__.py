"""A group shares queues: pulls them, gives their messages to a listener or to whoever polls, and commits."""
