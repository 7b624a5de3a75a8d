"""What `longpoll verify` and `longpoll conform` share: load and race of a broker, their limits, and a page of rows."""
