"""The files of a build context, rendered from templates."""

from pathlib import Path
from typing import Any

import jinja2

from envbuild.dockerfile.quote import FILTERS
from envbuild.errors import BuildError
from envbuild.lock.formats import WHEELS, is_local
from envbuild.oci.reference import Reference
from envbuild.recipe import Recipe

_INSTALLER = "/opt/installer"
_PLATFORM = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}


def build_context(recipe: Recipe, requirements: bytes, pylock: bytes, templates: Path) -> dict[str, bytes]:
    """Return file names and contents: Dockerfile, .dockerignore, requirements.txt and pylock.toml.

    The image that an engine builds of it has the environment, variables, labels and user of the assembled one.
    BuildError when a value cannot be written safely, naming its field, or when a template is missing or broken.
    """
    environment = _jinja(templates)
    values = _values(recipe)
    return {
        "Dockerfile": _render(environment, "Dockerfile.j2", values),
        ".dockerignore": _render(environment, "dockerignore.j2", values),
        "requirements.txt": requirements,
        "pylock.toml": pylock,
    }


def _jinja(templates: Path) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - a Dockerfile is no HTML; every value passes one of FILTERS
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(FILTERS)
    return environment


def _render(environment: jinja2.Environment, name: str, values: dict[str, Any]) -> bytes:
    try:
        return environment.get_template(name).render(values).encode()
    except jinja2.TemplateSyntaxError as error:
        raise _broken(f"{error.filename or name}:{error.lineno}", error) from error
    except (jinja2.TemplateError, OSError) as error:
        raise _broken(name, error) from error


def _broken(where: str, error: Exception) -> BuildError:
    return BuildError(
        f"a template cannot be used: {error}",
        where=where,
        todo="install envbuild again, or restore the folder templates/ of the checkout",
    )


def _values(recipe: Recipe) -> dict[str, Any]:
    return {
        "environment": str(recipe.environment),
        "base": _pullable(recipe.base_name),
        "base_name": recipe.base_name,
        "base_digest": str(recipe.base_digest),
        "platform": _PLATFORM.get(recipe.target.machine, f"linux/{recipe.target.machine}"),
        "python": recipe.python_path,
        "python_minor": recipe.target.python_minor,
        "prefix": recipe.prefix,
        "installer": _INSTALLER,
        "variables": recipe.variables,
        "labels": recipe.labels,
        "user": recipe.user,
        "wheels": WHEELS if any(map(is_local, recipe.wheels)) else None,
    }


def _pullable(base_name: str) -> str | None:
    """Return the base's name if any engine can pull it by digest; None for a folder or a bootstrapped Debian."""
    try:
        reference = Reference.parse(base_name)
    except ValueError:
        return None
    return base_name if reference.digest else None
