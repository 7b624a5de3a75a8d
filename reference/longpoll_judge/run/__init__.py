"""How a history is cut, judged in pieces, and put together again, in one process or on Spark."""
