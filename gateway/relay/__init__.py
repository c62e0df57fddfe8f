"""Bytes from an engine to a client: the lean upstream connections, the face of a client, and what happens in between."""
