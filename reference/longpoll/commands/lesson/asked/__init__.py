"""What each lesson asks: a module for each kind of answer, whose exercises `course` puts in order."""
