"""Training of the reference pipelines from scratch: ``python -m reference.train --help``."""
