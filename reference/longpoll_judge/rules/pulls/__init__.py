"""What is asked of pulls and their answers."""
