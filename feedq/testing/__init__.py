"""The suite that every connector passes, feedq's own and those of others. Nothing in feedq imports it."""
