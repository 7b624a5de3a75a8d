"""The engine on Spark: the same packed words, as columns of a cluster."""
