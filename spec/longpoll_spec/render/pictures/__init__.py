"""Renders a counterexample as plain text, as a mermaid diagram, as SVG or as HTML."""
