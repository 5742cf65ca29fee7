"""Connectors and sinks against servers that this project did not write, from Debian's packages."""
