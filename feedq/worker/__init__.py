"""The data plane: what a worker process does with the feeds it holds.

A record's way: connector → `runner` → `batch_queue` → `writer` → sink, and the acknowledgement back again. What
the worker does about its leases is decided by `core`, which does no I/O; `lease_keeper`, `lease_client` and
`supervisor` tell it what has happened and carry out what it answers.
"""
