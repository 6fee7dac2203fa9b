"""From the outputs of full runs to schedules and weights."""
