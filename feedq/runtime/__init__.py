"""The data plane: what a worker process does with the feeds it holds.

A record's way: connector → `runner` → `outlet` → `writer` → sink, and the acknowledgement back again. Beside
it, `keeper` renews the worker's lease, `desk` claims and releases feeds, and `supervisor` ties them together.
"""
