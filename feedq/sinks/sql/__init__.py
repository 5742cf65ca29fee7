"""The sink for MariaDB, MySQL and SQLite: ``mariadb://``, ``mysql://``, ``sqlite://``.

It keeps the promises of the PostgreSQL sink with plain means: rows go in by ``INSERT``, many at a time, and values
are converted here to what the types of their columns want, so that no database bends one silently.
"""

from feedq.sinks.sql.sink import SqlCatalog, SqlSink

__all__ = ["SqlCatalog", "SqlSink"]
