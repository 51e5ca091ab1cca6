"""Bytecode in layers of its own, compiled by the base's own interpreter, the same bytes everywhere."""

from envbuild.image.bytecode.interpreter import FORMAT, Interpreter, Unavailable, compiled_by
from envbuild.image.bytecode.layers import Bytecode, BytecodeLayer
from envbuild.image.bytecode.plan import MOST_LAYERS
from envbuild.image.bytecode.store import Store, Tally

__all__ = [
    "FORMAT",
    "MOST_LAYERS",
    "Bytecode",
    "BytecodeLayer",
    "Interpreter",
    "Store",
    "Tally",
    "Unavailable",
    "compiled_by",
]
