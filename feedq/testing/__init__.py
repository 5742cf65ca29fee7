"""Test suites for connectors and sinks, feedq's own and those of others.

`feedq.testing.connector_conformance` and `feedq.testing.sink_conformance` are imported by themselves, since they
need pytest. Nothing in feedq imports this package.
"""
