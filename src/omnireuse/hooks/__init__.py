"""The mechanism that every strategy shares: it finds the region, wraps it, remembers, and undoes itself."""
