"""The data plane: what a worker process does with the feeds it holds.

A record's way: connector → `runner` → `batch_queue` → `writer` → sink, and the acknowledgement back again. Beside
it, `lease_keeper` renews the worker's lease, `lease_client` claims and releases feeds, and `supervisor` ties them
together.
"""
