"""The suite: `unit`, `models`, `system` and `hosts`; CONTRIBUTING.md says what belongs where."""

from pathlib import Path

TOP = Path(__file__).parents[1]
"""The repository."""
