"""The exercises of the lessons, one module per kind of answer; `LESSONS` puts them in order."""
