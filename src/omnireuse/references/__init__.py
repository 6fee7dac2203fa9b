"""Editing models: keys and values of references are computed at some calls, and kept for those in between."""

from omnireuse.references.axis import ReferenceAxis, WithReferences, axis_for
from omnireuse.references.declared import DECLARED, Declaration, References, Split

__all__ = ["DECLARED", "Declaration", "ReferenceAxis", "References", "Split", "WithReferences", "axis_for"]
