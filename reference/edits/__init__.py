"""Edits of people: an instruction, one or two reference pictures, and the picture that is to come out."""
