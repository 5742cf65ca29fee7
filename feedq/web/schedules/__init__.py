"""The page *Schedules*, a schedule's own page, and their JSON API.

Beside *Feeds* and *Fleet* these are the only addresses of feedq's in Flower that change anything: a run may be
triggered or cancelled, a schedule paused or resumed. `feedq.web.schedules.changing` says who may.
"""
