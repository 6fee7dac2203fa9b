"""The best schedule for a pipeline, found on its own runs: record, plan, refine, keep."""
