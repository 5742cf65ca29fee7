"""Places feeds: pure functions from feeds and workers to assignments and moves; no I/O, no clock, no chance.

`place` gives waiting feeds to workers, `rebalance` moves running ones when the fleet has become uneven, and
`donors` says from the workers' counters alone whose feeds could be among them.
"""
