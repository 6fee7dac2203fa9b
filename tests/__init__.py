"""The suite of the product, and of the repository as a whole; CONTRIBUTING.md says what belongs where."""

from pathlib import Path

TOP = Path(__file__).parents[1]
"""The repository."""
