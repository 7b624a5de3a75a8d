"""A judgement for people and for other tools."""
