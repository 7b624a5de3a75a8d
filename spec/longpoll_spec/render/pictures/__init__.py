"""A counterexample as text, mermaid, SVG or HTML."""
