"""What a correct broker may do, line by line, and what is said of one that did not."""
