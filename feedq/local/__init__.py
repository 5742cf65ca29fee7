"""Everything on one machine: PostgreSQL and Valkey from wheels, and the processes of a whole fleet.

For development, demonstrations and tests. A deployment brings its own servers and runs
``celery -A feedq worker|beat|flower`` itself.
"""
