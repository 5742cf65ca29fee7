"""Connectors: one file each, found through the entry point group ``feedq.connectors``."""
