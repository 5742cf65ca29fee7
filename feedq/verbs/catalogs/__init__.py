"""Catalogs: lists of feeds that are kept elsewhere, and what `feedq sync` makes of them.

A catalog gives entries, each like a feed in a manifest. `comparing` reads them and finds what differs from the
feeds that were made from this catalog before, `syncing` makes the difference. A feed that somebody else declared
is left alone, whatever a catalog says.
"""
