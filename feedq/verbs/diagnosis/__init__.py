"""Is this installation healthy, and if not, what is to be mended?

Checks read and measure. They change nothing but a queue of their own and a lock, both gone at the end, and make
feedq's own tables in a sink that has none yet, as its first worker would. Each is one `Check`: what was looked at,
how it is, and what to do about it. `feedq doctor` runs all of them (`feedq.verbs.fleet`), and
`feedq status` those that only need the tables.
"""
