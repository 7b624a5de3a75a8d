"""The judge's contract, clause by clause, and the results of judging."""
