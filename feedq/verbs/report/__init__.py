"""What command, web pages and HTTP API say alike.

`feedq.verbs.report.rows` has documents for programs, `feedq.verbs.report.details` lines for people. Command and
web take both from here; neither knows the other."""
