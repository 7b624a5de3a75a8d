"""Makes the site of the docs: `make docs` writes it into `build/site`, and `python -m docs.site` does.

`tree` puts the pages together that Sphinx reads: those of `docs`, some of other folders, and those that are made of the
program itself (`commands`, `clauses`). `build` runs Sphinx. Nothing that is written here needs the network when it is
looked at.
"""
