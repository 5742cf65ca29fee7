"""Is this installation healthy, and if not, what is to be mended?

Checks read and measure; they change nothing but messages in queues of their own and a lock that they
release. Each is one `Check`: what was looked at, how it is, and what to do about it. `feedq doctor` runs
all of them (`feedq.verbs.diagnosis.doctor`), `feedq status` those that only need the tables.
"""
