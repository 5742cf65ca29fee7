"""Stories of several workers, ticked by hand and compared as transcripts."""
