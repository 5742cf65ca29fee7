"""The control database and the reconcile pass."""
