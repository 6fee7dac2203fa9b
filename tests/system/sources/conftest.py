from tests.helpers.sources import modular, run

__all__ = ["modular", "run"]
