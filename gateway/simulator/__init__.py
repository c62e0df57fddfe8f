"""A pretend inference engine on a real socket, and clients that load it, for `kvgate demo` and the end-to-end tests.

Nothing here imports the rest of the gateway, so that the two cannot share a mistake: block arithmetic, wire formats and
metric names are written down a second time, from what vLLM does. `python -m gateway.simulator` runs the engine alone.
"""
