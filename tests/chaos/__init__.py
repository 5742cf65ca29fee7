"""Faults on purpose, in a running cluster of real processes; then the invariants."""
