"""Manifests: text in, declarations with their positions out; and the way back.

A manifest is YAML or JSON, one document or several, each a mapping with lists of ``feeds``, ``schedules``
and ``queues``.

Reading goes on after a mistake, so that all of them can be told at once: `parse` never raises, it returns
problems, each with its file and line (or the number of the feed, in JSON). Whether the options of a feed suit its
connector and sink, `option_problems` says.
"""
