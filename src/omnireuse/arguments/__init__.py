"""From the arguments of `enable` to a strategy, or to an error that says what to write."""
