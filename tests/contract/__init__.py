"""One suite per interface, over all its implementations."""
