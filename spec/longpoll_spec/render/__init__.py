"""A trace for people: a story in RocketMQ's own terms, as text, as a mermaid chart, as SVG and as a page.

`story` says who does what in each step and what is then wrong; the other modules only lay it out. Leaves out replaying
a token (`engines.tokens`) and every judgement: a story is made of a trace that an engine has found.
"""
