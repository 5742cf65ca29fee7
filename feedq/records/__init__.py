"""From bytes or messages to records, and what is read out of one: cursors, pointers, the fields of a line."""
