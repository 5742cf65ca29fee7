"""The jobs of schedules on one worker: the ticker that fires them, the slots that run them, what a job is told."""
