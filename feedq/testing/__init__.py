"""The suite that every connector passes, feedq's own and those of others.

`feedq.testing.connector_conformance` is imported by itself, since it needs pytest. Nothing in feedq imports this
package.
"""
