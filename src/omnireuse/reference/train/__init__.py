"""Training of the reference pipelines from scratch: ``python -m omnireuse.reference.train --help``."""
