"""The result of a run for people and machines: text, JSON, JUnit XML, and HTML pages."""
