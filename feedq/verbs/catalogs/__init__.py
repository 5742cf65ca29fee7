"""Catalogs: lists of feeds that are kept elsewhere, and what `feedq sync` makes of them.

Each kind fetches its list; `base` makes entries of what it has fetched, each like a feed in a manifest; and
`syncing` makes the feeds that were made from this catalog as it says. A feed that somebody else declared is left
alone, whatever a catalog says.
"""
