"""The start-up check of images: a program that tests what a container needs, and the list that it reads."""

from functools import cache
from pathlib import Path

from envbuild.capture import joined
from envbuild.oci.image import canonical_json
from envbuild.recipe import CUDA_LABEL, DRIVER_LABEL, VARIANT_LABEL, Recipe

PROGRAM = "bin/envbuild-check"
LIST = "share/envbuild/lock.json"
_DOCSTRING = '''"""Test whether a container has what the program in it needs, before that program starts.

`envbuild-check [--json] [-- COMMAND...]` compares variables, data, packages and GPUs with the lists in share/envbuild
of the environment and with the contract that ENVBUILD_CONTRACT names: a path, or the JSON itself, which begins with a
brace. ENVBUILD_CHECK says what a fault does: `strict` ends with exit code 16 before the command starts, `warn`, the
default, reports it and goes on, `off` checks nothing.
"""
'''
_END = '\n\nif __name__ == "__main__":\n    run()\n'


def check_files(recipe: Recipe) -> dict[str, bytes]:
    """Return program and list by their paths below the prefix; the first is executable.

    Neither depends on the interpreter's patch version, so that another base does not change them.
    """
    return {PROGRAM: check_program(recipe.prefix), LIST: environment_list(recipe)}


@cache
def check_program(prefix: str) -> bytes:
    """Join the modules of this package to one file, which the interpreter in `prefix` runs.

    -I and -S keep variables and packages from changing it, and -B keeps it from writing bytecode.
    """
    return ("#!%s/bin/python -BIS\n" % prefix + joined(Path(__file__).parent, "program", _DOCSTRING, _END)).encode()


def environment_list(recipe: Recipe) -> bytes:
    """Return an image's variant, Python, CUDA, lowest driver, and packages as JSON."""
    labels = dict(recipe.labels)
    values = {
        "variant": labels.get(VARIANT_LABEL),
        "python": recipe.target.python_minor,
        "cuda": labels.get(CUDA_LABEL),
        "driver": labels.get(DRIVER_LABEL),
        "packages": {wheel.name: wheel.version for wheel in recipe.wheels},
    }
    return canonical_json({key: value for key, value in values.items() if value is not None})
