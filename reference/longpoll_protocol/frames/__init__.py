"""Frames: split from the stream and decoded as commands."""
