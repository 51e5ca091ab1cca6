"""The files of the start-up check that lie in every image."""

from functools import cache
from pathlib import Path

from envbuild.capture.script import joined
from envbuild.oci.image import canonical_json
from envbuild.recipe import CUDA_LABEL, DRIVER_LABEL, VARIANT_LABEL, Recipe

PROGRAM = "bin/envbuild-check"
LIST = "share/envbuild/lock.json"
_DOCSTRING = '''"""Test whether a container has what the program in it needs, before that program is started.

`envbuild-check [--json] [-- COMMAND...]` holds variables, data, packages and GPUs against the lists in share/envbuild
of the environment and against the contract that ENVBUILD_CONTRACT names: a path, or the JSON itself, which begins with
a brace. ENVBUILD_CHECK says what a fault does: `strict` ends with exit code 16 before the command is started, `warn`,
the default, tells it and goes on, `off` looks at nothing.
"""
'''
_END = '\n\nif __name__ == "__main__":\n    run()\n'


def check_files(recipe: Recipe) -> dict[str, bytes]:
    """Return program and list by their paths below the prefix; the first is executable.

    Neither depends on the interpreter's patch version, so that they stay what they are on another base.
    """
    return {PROGRAM: program(recipe.prefix), LIST: environment_list(recipe)}


@cache
def program(prefix: str) -> bytes:
    """Join the modules of this package to one file, which the interpreter in `prefix` runs.

    -I and -S keep what variables and packages would do to it away from it, and -B leaves nothing behind.
    """
    return f"#!{prefix}/bin/python -BIS\n{joined(Path(__file__).parent, ['program'], _DOCSTRING, _END)}".encode()


def environment_list(recipe: Recipe) -> bytes:
    """Return what an image is and has, as JSON: variant, Python, CUDA, lowest driver, and packages."""
    labels = dict(recipe.labels)
    said = {
        "variant": labels.get(VARIANT_LABEL),
        "python": recipe.target.python_minor,
        "cuda": labels.get(CUDA_LABEL),
        "driver": labels.get(DRIVER_LABEL),
        "packages": {wheel.name: wheel.version for wheel in recipe.wheels},
    }
    return canonical_json({key: value for key, value in said.items() if value is not None})
