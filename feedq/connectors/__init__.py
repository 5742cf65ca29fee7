"""Connectors: one file a kind, found through the entry point group ``feedq.connectors``; `base` is what they are.

`blocking` runs those that are plain generators. What they are made of is in packages, from the wire to the record:

* `wire`: to be connected. Options and URLs, names and addresses, TLS, sockets; texts that are filled in.
* `records`: from bytes to records, from messages of a broker to records, and what is read out of a record: its
  cursor, what a JSON pointer leads to, the fields of its line.
* `protocol`: what one kind needs besides its own file, under the name of its protocol.
* `local`: files that are followed, and child processes.
"""
