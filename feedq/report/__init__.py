"""What command, web pages and HTTP API say alike.

`feedq.report.rows` has documents for programs, `feedq.report.details` lines for people. Command and web take both
from here; neither knows the other.
"""
