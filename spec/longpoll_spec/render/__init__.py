"""Show a trace to people in RocketMQ's terms: as text, as a mermaid chart, as SVG and as a page.

`story` describes each step and the violation at the end; the other modules lay out the result. `engines.tokens` replays
a token.
"""
