"""Serves sends of every form, from the request to the acknowledgement."""
