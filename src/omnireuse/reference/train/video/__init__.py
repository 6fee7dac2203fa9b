"""Training of the reference video pipeline, stage by stage."""
