"""omnireuse inside the engines that serve models. A host's package says where outputs come from and go to."""

__version__ = "0.3.0"
