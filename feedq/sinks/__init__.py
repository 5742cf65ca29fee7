"""Sinks: the databases that records land in, found through the entry point group ``feedq.sinks``."""
