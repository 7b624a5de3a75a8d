"""The specification as a book: a page for each action and each feature, and the differences between two policies.

`formula` writes terms as MathML, `reads_and_writes` finds which actions read and write which variables, `chapters`
builds the pages, and `differences` compares two policies. Derived from the specification like docs/spec.md, which has
it all on one page. The results of mutants are passed in.
"""
