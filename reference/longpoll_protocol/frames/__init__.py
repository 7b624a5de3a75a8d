"""Frames: what travels between two lengths, cut out of the stream and read as a command."""
