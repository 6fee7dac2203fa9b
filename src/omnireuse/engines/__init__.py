"""Step reuse inside the engines that serve models. A host's package says where outputs come from and go to."""
