"""A whole broker, its clients and its misfortunes in a simulated world: one seed, one run."""
