"""Builds the website of the docs into `build/site`: run `make docs` or `python -m docs.site`.

`tree` collects the pages that Sphinx reads: pages of `docs`, pages of other folders, and pages that are generated from
the program itself (`commands`, `clauses`). `build` runs Sphinx. The finished website needs no network.
"""
