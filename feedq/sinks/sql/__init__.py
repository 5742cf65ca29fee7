"""The sink for any database with transactions that SQLAlchemy speaks: ``sqlite://``, ``mariadb://``, ``mysql://``.

It keeps the promises of the PostgreSQL sink with plain means: rows go in by ``INSERT``, many at a time, and values
are converted here to what the types of their columns want, so that no database bends one silently.

===============  =====================================================================================
`sink`           `SqlSink`: one session, and what an error means for the caller
`database`       what a URL leads to
`session`        a connection that begins and commits where it is told, honest about its commits
`flavor`         what databases do alike; `mysql` and `sqlite` are what these two do their own way
`tables`         feedq's own tables, and the default landing
`shape`          a landing's table as it is, and whether the landing can work
`catalog`        what a session knows of its database
`values`         texts of records as values of columns
`plan`           how records become rows of one landing
`attempt`        landing under a savepoint
`group`          one attempt at a group commit
`fencing`        raising epochs
`letters`        dead letters: listed, tried again, dropped
===============  =====================================================================================
"""

from feedq.sinks.sql.sink import SqlSink

__all__ = ["SqlSink"]
