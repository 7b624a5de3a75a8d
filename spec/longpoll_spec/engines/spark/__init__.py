"""The engine on Spark: it distributes the search of the packed engine over a cluster."""
