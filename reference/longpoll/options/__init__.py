"""What several commands take: kinds of values, groups of options, and what a shell may complete of them."""
