"""Sources that mean harm, and a process that is made to read them: what one of them can do to a worker."""
