"""The files of a build context, rendered from templates."""

from pathlib import Path
from typing import Any

from envbuild.check import PROGRAM, check_files
from envbuild.image.context.render import templates_with
from envbuild.lock.formats import WHEELS, is_local
from envbuild.oci.reference import Reference
from envbuild.recipe import Recipe

DEBS = "debs"
"""The folder of a context where the Debian packages lie that it installs without a network."""
CHECK = "check"
"""The folder of a context with the start-up check and the list that it reads."""
RENDERED = {
    "Dockerfile": "Dockerfile.j2",
    "Dockerfile.classic": "Dockerfile.classic.j2",
    ".dockerignore": "dockerignore.j2",
    "README.md": "README.md.j2",
}
"""Which template gives which file."""
_INSTALLER = "/opt/installer"
_PLATFORM = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}


def build_context(
    recipe: Recipe, requirements: bytes, pylock: bytes, templates: Path | None, *, wheelhouse: bool = False
) -> dict[str, bytes]:
    """Return file names and contents: two Dockerfiles, .dockerignore, requirements.txt, pylock.toml, README.md
    and the files of the start-up check.

    `Dockerfile` wants BuildKit, `Dockerfile.classic` any builder; what either gives has the files, variables, labels
    and user of the assembled image. `templates` is a folder whose templates replace the built-in ones of the same name.
    With `wheelhouse` nothing is fetched: the caller puts every wheel into the folder `wheels` and every package's file
    into `debs`. BuildError when a value cannot be written safely, naming its field, or when a template is broken.
    """
    found = templates_with(templates)
    values = _values(recipe, wheelhouse=wheelhouse)
    rendered = {file: found.render(name, values) for file, name in RENDERED.items()}
    return rendered | context_check(recipe) | {"requirements.txt": requirements, "pylock.toml": pylock}


def context_check(recipe: Recipe) -> dict[str, bytes]:
    """Return the files of the start-up check, by their paths in a context."""
    return {f"{CHECK}/{_named(path)}": content for path, content in check_files(recipe).items()}


def _values(recipe: Recipe, *, wheelhouse: bool) -> dict[str, Any]:
    beside = bool(recipe.wheels) if wheelhouse else any(map(is_local, recipe.wheels))
    return {
        "environment": str(recipe.environment),
        "base": _pullable(recipe.base_name),
        "base_name": recipe.base_name,
        "base_digest": str(recipe.base_digest),
        "platform": _PLATFORM.get(recipe.target.machine, f"linux/{recipe.target.machine}"),
        "python": recipe.python_path,
        "versioned": f"python{recipe.target.python_minor}",
        "pyvenv": recipe.pyvenv,
        "prefix": recipe.prefix,
        "installer": _INSTALLER,
        "variables": recipe.variables,
        "labels": recipe.labels,
        "user": recipe.user,
        "count": len(recipe.wheels),
        "wheels": WHEELS if beside else None,
        "wheelhouse": wheelhouse,
        "packages": recipe.packages,
        "debs": DEBS,
        "check": CHECK,
        "check_files": [("0755" if path == PROGRAM else "0644", _named(path), path) for path in check_files(recipe)],
    }


def _named(path: str) -> str:
    return path.rpartition("/")[2]


def _pullable(base_name: str) -> str | None:
    """Return the base's name if any engine can pull it by digest; None for a folder or a bootstrapped Debian."""
    try:
        reference = Reference.parse(base_name)
    except ValueError:
        return None
    return base_name if reference.digest else None
