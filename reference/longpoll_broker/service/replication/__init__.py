"""A master and those who copy its log: who follows, how far each is, and which sends wait for that."""
