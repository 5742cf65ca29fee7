"""What people and programs ask for: declare, act, diagnose, report, move cursors, alert."""
