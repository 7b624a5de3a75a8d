"""The law as a page that runs it in a browser: data, an interpreter in JavaScript, and what a reader clicks."""
