"""Events as columns of numbers, and what is looked up in them."""
