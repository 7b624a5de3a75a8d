"""The proving engine: it translates terms to z3 expressions and proves properties by induction."""
