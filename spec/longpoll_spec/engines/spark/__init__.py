"""The engine on Spark: the same words, as columns of a cluster."""
