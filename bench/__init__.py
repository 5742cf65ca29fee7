"""Benchmarks of feedq: what it promises, measured on this machine. Run by ``make bench``."""
