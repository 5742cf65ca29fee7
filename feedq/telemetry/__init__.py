"""What feedq says about itself: logs, metrics and traces."""
