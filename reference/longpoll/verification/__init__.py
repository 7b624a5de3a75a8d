"""The shared code of `longpoll verify` and `longpoll conform`: a load and a race, their limits, and a page of rows."""
