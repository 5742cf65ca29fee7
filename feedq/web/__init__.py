"""feedq's pages in Flower: *Feeds*, *Fleet* and *Schedules*, and a JSON API, under Flower's own login and prefix.

Everything shown is read from the control tables through `feedq.control.store`, never from Flower's memory of
tasks: a restarted Flower knows all of it. Only the API in `feedq.web.flower_api` changes anything.
`feedq.web.hook` is how it gets into ``celery -A feedq flower``; nothing else of this package is imported in a
worker or a beat.
"""
