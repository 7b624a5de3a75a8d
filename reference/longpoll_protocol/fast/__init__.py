"""Faster encoders and decoders with byte-identical results."""
