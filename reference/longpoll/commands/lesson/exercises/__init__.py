"""The exercises of the lessons, one module per kind of answer; `course` puts them in order."""
