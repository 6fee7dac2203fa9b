"""Step reuse inside the engines that serve models: each host is one package that says where outputs come from and go to."""
