"""feedq's pages in Flower: *Feeds*, *Fleet* and *Schedules*, and a JSON API, under Flower's own login and prefix.

Everything shown is read from the control tables through `feedq.control.store`, never from Flower's memory of
tasks: a restarted Flower knows all of it. What changes anything are the POSTs of `feedq.web.api` and
`feedq.web.pages`. `feedq.web.hook` is how it gets into ``celery -A feedq flower``; nothing else of this package
is imported in a worker or a beat."""
