"""Sends of every form, up to the acknowledgement."""
