"""Edits of people: an instruction, one or two reference pictures, and the picture that is to come out."""

from reference.edits.examples import Examples, held_out_examples

__all__ = ["Examples", "held_out_examples"]
