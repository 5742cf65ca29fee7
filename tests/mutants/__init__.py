"""Faulty versions of the protocol, which the tests that claim to prove it must find."""
