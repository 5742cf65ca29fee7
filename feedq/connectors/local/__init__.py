"""Of connectors that read on the worker itself: files that are followed, and child processes."""
