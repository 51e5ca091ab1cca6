"""Templates that people may replace: found, rendered, and when they are broken, named by file and line."""

import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2.loaders import split_template_path
from jinja2.sandbox import ImmutableSandboxedEnvironment
from markupsafe import Markup

from envbuild.errors import BuildError
from envbuild.files import data_folder
from envbuild.image.context.quote import FILTERS

BUILT_IN = "envbuild"
"""`{% extends "envbuild/Dockerfile.j2" %}` is the built-in template, also in a file that replaces it."""


@cache
def templates_with(folder: Path | None) -> "Templates":
    """Return the templates with those of a folder before the built-in ones; files that change are read anew."""
    return Templates(folder)


class Templates:
    """The built-in templates, with those of a folder before them.

    In a sandbox: which folder that is may be said by a file that came with somebody's repository. Such a template
    decides what the image is, which runs in containers; it must not run code here, or read what is not a template.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folders = [*([folder] if folder else []), data_folder("templates")]
        built_in = _Loader(self._folders[-1])
        loaders = [*([_Confined(folder)] if folder else []), built_in]
        self._jinja = ImmutableSandboxedEnvironment(
            loader=jinja2.ChoiceLoader([*loaders, jinja2.PrefixLoader({BUILT_IN: built_in})]),
            undefined=jinja2.StrictUndefined,
            # Not for HTML, which nothing here is: text that filters returned is then told from text that none has seen.
            autoescape=True,
            finalize=_quoted,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        self._jinja.filters.update({name: _marked(function) for name, function in FILTERS.items()})

    def render(self, name: str, values: Mapping[str, Any]) -> bytes:
        """Render a template; BuildError that names file and line when it is missing or broken."""
        try:
            return self._jinja.get_template(name).render(values).encode()
        except BuildError:
            raise
        except jinja2.TemplateSyntaxError as error:
            raise _broken(f"{error.filename or error.name or name}:{error.lineno}", error.message or "") from error
        except Exception as error:  # a template can raise whatever Python can
            raise _broken(self._place(error) or name, f"{type(error).__name__}: {error}") from error

    def _place(self, error: Exception) -> str:
        """The line of the innermost template; jinja gives its frames the template's own name and numbers."""
        frames = traceback.extract_tb(error.__traceback__)
        ours = [it for it in frames if any(Path(it.filename).is_relative_to(folder) for folder in self._folders)]
        return f"{ours[-1].filename}:{ours[-1].lineno}" if ours else ""


class _Loader(jinja2.FileSystemLoader):
    """Names the file and line of what cannot be read as text."""

    def get_source(self, environment: jinja2.Environment, template: str) -> Any:
        try:
            return super().get_source(environment, template)
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            raise jinja2.TemplateSyntaxError("this is not UTF-8", line, template, self._path(template)) from error
        except jinja2.TemplateNotFound:  # an OSError, too
            raise
        except OSError as error:
            what = f"this cannot be read: {error.strerror}"
            raise jinja2.TemplateSyntaxError(what, 1, template, self._path(template)) from error

    def _path(self, template: str) -> str:
        return str(Path(self.searchpath[0]) / template)


class _Confined(_Loader):
    """Reads nothing outside its folder: links, too, may have come with somebody's repository.

    The built-in templates are not confined, as installers may link them from a store of theirs.
    """

    def get_source(self, environment: jinja2.Environment, template: str) -> Any:
        folder = Path(self.searchpath[0]).resolve()
        if not folder.joinpath(*split_template_path(template)).resolve().is_relative_to(folder):
            what = "this is a link that leaves the folder of templates"
            raise jinja2.TemplateSyntaxError(what, 1, template, self._path(template))
        return super().get_source(environment, template)


@jinja2.pass_context  # so that jinja calls it while it renders, where the line is known
def _quoted(_context: jinja2.runtime.Context, value: Any) -> Any:
    """Refuse what no filter has passed: it could hold anything."""
    if isinstance(value, Markup):
        return value
    text = str(value)  # says what is undefined
    names = ", ".join(sorted(FILTERS))
    raise jinja2.TemplateRuntimeError(f"{text[:100]!a} is written without a filter that quotes it, one of {names}")


def _marked(function: Any) -> Any:
    def quote(*arguments: Any) -> Markup:
        for undefined in (it for it in arguments if isinstance(it, jinja2.Undefined)):
            str(undefined)  # says what it is
        return Markup(function(*arguments))  # noqa: S704 - see autoescape

    return quote


def _broken(where: str, what: str) -> BuildError:
    todo = "correct the template; `envbuild eject DIR` writes the built-in ones, to compare or to start anew"
    return BuildError(f"a template cannot be used: {what}", where=where, todo=todo)


def built_in() -> dict[str, bytes]:
    """Return the built-in templates by name."""
    return {path.name: path.read_bytes() for path in sorted(data_folder("templates").glob("*.j2"))}
