"""Catalogs: lists of feeds that are kept elsewhere, and what `feedq sync` makes of them.

Each kind fetches its list; `base` reads what it has fetched, as manifests are read; and `syncing` declares it. A
feed that somebody else declared is left alone, whatever a catalog says.
"""
