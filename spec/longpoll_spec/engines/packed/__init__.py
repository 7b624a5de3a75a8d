"""The fast engine: states packed into words, actions over columns of them."""
