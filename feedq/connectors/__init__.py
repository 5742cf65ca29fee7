"""Connectors: one file a kind, found through the entry point group ``feedq.connectors``; `base` is what they are.

* `reading` makes records and batches of a stream, `messages` of what a broker sends; both rest on `feedq.records`.
* `wire` connects: options and URLs, names and addresses, TLS, sockets.
* `blocking` runs those that are plain generators, each on a thread of its own.
* A protocol that needs more than its own file has others named for it, such as `nats_client` or `http_polling`.
"""
