"""Bytecode in layers of its own, compiled by the base's own interpreter, the same bytes everywhere."""

from envbuild.assemble.bytecode.interpreter import FORMAT, Interpreter, Unavailable, compiled_by
from envbuild.assemble.bytecode.layers import Bytecode, BytecodeLayer
from envbuild.assemble.bytecode.plan import MOST_LAYERS
from envbuild.assemble.bytecode.store import Store, Tally

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
