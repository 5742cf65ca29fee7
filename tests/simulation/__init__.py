"""Whole fleets on paper under random faults; the seed is printed and replays."""
