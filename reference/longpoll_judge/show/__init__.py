"""Presents a judgement to people and to other tools."""
