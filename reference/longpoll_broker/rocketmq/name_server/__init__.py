"""The name server, which knows which brokers serve which topics."""
