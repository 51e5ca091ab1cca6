"""`pip-compile` that adds no dependencies: pip-tools has no option for it, and sets pip's own to false.

Run as a program of its own, by path, with pip-compile's options. The environment of a run is whole already, and it may
well hold versions that its distributions do not declare to be compatible.
"""

from typing import Any

from piptools.repositories import PyPIRepository
from piptools.scripts import compile as pip_compile


class NoDependencies(PyPIRepository):
    """The index, with pip told to leave dependencies alone."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.options.ignore_dependencies = True


def main() -> None:
    """Run pip-compile with this index in place of its own."""
    vars(pip_compile)["PyPIRepository"] = NoDependencies
    pip_compile.cli()


if __name__ == "__main__":
    main()
