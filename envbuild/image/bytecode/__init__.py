"""Bytecode in layers of its own, compiled by the base's own interpreter, the same bytes everywhere."""
