"""What `--json` and the HTTP API say: the columns of the tables, under the same names.

Fields may be added; none changes its meaning. Passwords in URLs are masked and secrets are references. Command and
web take these documents, and the words for runs beside them, from here; neither knows the other.
"""

from feedq.report.fleet_report import event_row, feed_document, feed_row, status_document, worker_row
from feedq.report.masking import masked, shown
from feedq.report.schedule_report import run_row, schedule_document, schedule_row, schedule_standing

__all__ = [
    "event_row",
    "feed_document",
    "feed_row",
    "masked",
    "run_row",
    "schedule_document",
    "schedule_row",
    "schedule_standing",
    "shown",
    "status_document",
    "worker_row",
]
