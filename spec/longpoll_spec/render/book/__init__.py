"""The specification as a book: a page for each action and each aspect, and the differences between two policies.

`formula` writes terms as MathML, `reads_and_writes` says who reads and writes what, `chapters` puts the pages together,
and `differences` tells two policies apart. Made from the law's own text like docs/spec.md, which has it all on one
page. Leaves out what slips show, which is given to it.
"""
