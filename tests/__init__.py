"""Tests of feedq, and the programs they share."""
