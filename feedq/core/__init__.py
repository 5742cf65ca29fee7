"""Decisions without I/O: leases, the worker, placement, ticks, limits, expectations, selections and roles."""
