"""The build context: files that people read and any Docker engine can build, rendered from templates (Jinja2).

A Dockerfile has no general quoting: an instruction ends with its line whatever quotes are open. So a character that
would end a line is refused, not escaped, and every filter names the field that it refuses (Dockerfile reference,
"Parser directives" to "Environment replacement").
"""

import json
import posixpath
import re
import shlex
import traceback
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import jinja2
from jinja2.loaders import split_template_path
from jinja2.sandbox import ImmutableSandboxedEnvironment
from markupsafe import Markup

from envbuild.check import PROGRAM, check_files
from envbuild.errors import BuildError, UsageError
from envbuild.files import data_folder
from envbuild.lock.formats import WHEELS, needs_file
from envbuild.lock.model import LockedWheel, SystemPackage, Target
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference
from envbuild.recipe import Recipe

BUILT_IN = "envbuild"
"""`{% extends "envbuild/Dockerfile.j2" %}` names the built-in template, also in a file that replaces it."""
DEBS = "debs"
"""The folder of a context with the Debian packages for an installation without a network."""
CHECK = "check"
"""The folder of a context with the start-up check and its list."""
RENDERED = {
    "Dockerfile": "Dockerfile.j2",
    "Dockerfile.classic": "Dockerfile.classic.j2",
    ".dockerignore": "dockerignore.j2",
    "README.md": "README.md.j2",
}
"""Templates by the name of the file."""
_INSTALLER = "/opt/installer"
_PLATFORM = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}
_DIGEST: Final = Digest("0" * 64)
_CORRECT = "correct the value where it comes from: the manifest, the profile or the base"
_WORD = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._:/@+\[\]-]*|(?:/[A-Za-z0-9._+-]+)+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+=[0-9][A-Za-z0-9.+~:-]*")
"""Debian policy, sections 5.6.1 and 5.6.12."""
_REFUSED = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Unicode categories: control characters, halves of surrogate pairs, line and paragraph separators."""


def as_env(value: str, field: str) -> str:
    r"""Quote the value of ENV or LABEL: double quotes, in which `\`, `"` and `$` are escaped."""
    return '"' + re.sub(r'([\\"$])', r"\\\1", _printable(value, field)) + '"'


def as_json(value: str | list[str], field: str) -> str:
    """Write the exec form of RUN, or one string of it."""
    for part in [value] if isinstance(value, str) else value:
        _printable(part, field)
    return json.dumps(value, ensure_ascii=False)


def as_shell(value: str, field: str) -> str:
    """Write one word of a shell command, in single quotes if it needs any."""
    return shlex.quote(_printable(value, field))


def as_package(package: SystemPackage) -> str:
    """Pass a package for apt-get: `libgomp1=12.2.0-14`."""
    return _matching(_PACKAGE, f"{package.name}={package.version}", f"package {package.name!r}", "Debian's names")


def as_deb(package: SystemPackage) -> str:
    """Write the name that `apt-get download` gives a package's file (apt, QuoteString in acquire-item.cc)."""
    version = as_package(package).partition("=")[2].replace(":", "%3a")
    return f"{package.name}_{version}_{as_word(package.architecture, f'architecture of {package.name!r}')}.deb"


def as_number(value: int) -> str:
    """Write a count."""
    return str(int(value))


def as_word(value: str, field: str) -> str:
    """Pass a path, reference, digest or user that needs no quotes."""
    return _matching(_WORD, value, field, "letters, digits and ._:/@+-[]")


def as_variable(name: str) -> str:
    """Pass the name of an environment variable."""
    return _matching(_VARIABLE, name, f"variable {name!r}", "letters, digits and _")


def as_label(name: str) -> str:
    """Pass the key of a label; BuildKit splits at the first `=`, even inside quotes."""
    return _matching(_LABEL, name, f"label {name!r}", "letters, digits and ._/-")


FILTERS: dict[str, Callable[..., str]] = {
    "deb": as_deb,
    "env": as_env,
    "json": as_json,
    "label": as_label,
    "number": as_number,
    "package": as_package,
    "shell": as_shell,
    "variable": as_variable,
    "word": as_word,
}
"""The template's filters, by name."""


def _printable(value: str, field: str) -> str:
    for character in value:
        if unicodedata.category(character) in _REFUSED:
            what = f"{field} has the character U+{ord(character):04X}, which is not safe in a Dockerfile"
            raise BuildError(what, where=f"{field} = {ascii(value)[:200]}", todo=_CORRECT)
    return value


def _matching(pattern: re.Pattern[str], value: str, field: str, allowed: str) -> str:
    if not pattern.fullmatch(value):
        what = f"{field} has a character that is not safe without quotes in a Dockerfile; allowed are {allowed}"
        raise BuildError(what, where=f"{field} = {ascii(value)[:200]}", todo=_CORRECT)
    return value


@cache
def templates_with(folder: Path | None) -> "Templates":
    """Return the templates with those of a folder before the built-in ones; changed files are read again."""
    return Templates(folder)


class Templates:
    """The built-in templates, with those of a folder before them, in a sandbox.

    A file in a cloned repository may name the folder. Such a template decides the contents of the image, which runs in
    containers; it must not run code here, or read files outside its folder.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folders = [*([folder] if folder else []), data_folder("templates")]
        built_in = _Loader(self._folders[-1])
        loaders = [*([_Confined(folder)] if folder else []), built_in]
        self._jinja = ImmutableSandboxedEnvironment(
            loader=jinja2.ChoiceLoader([*loaders, jinja2.PrefixLoader({BUILT_IN: built_in})]),
            undefined=jinja2.StrictUndefined,
            # Not for HTML: it marks the text that a filter returned, so that other text can be refused.
            autoescape=True,
            finalize=_refuse_unquoted,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        self._jinja.filters.update({name: _mark(function) for name, function in FILTERS.items()})

    def render(self, name: str, values: Mapping[str, Any]) -> bytes:
        """Render a template; BuildError with file and line if it is missing or broken."""
        try:
            return self._jinja.get_template(name).render(values).encode()
        except BuildError:
            raise
        except jinja2.TemplateSyntaxError as error:
            raise _broken(f"{error.filename or error.name or name}:{error.lineno}", error.message or "") from error
        except Exception as error:  # a template can raise any exception
            raise _broken(self._place(error) or name, f"{type(error).__name__}: {error}") from error

    def _place(self, error: Exception) -> str:
        """Return the line of the innermost template, as jinja's frames have the template's name and line numbers."""
        frames = traceback.extract_tb(error.__traceback__)
        ours = [it for it in frames if any(Path(it.filename).is_relative_to(folder) for folder in self._folders)]
        return f"{ours[-1].filename}:{ours[-1].lineno}" if ours else ""


class _Loader(jinja2.FileSystemLoader):
    """Raises errors with file and line for a file that cannot be read as text."""

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
    """Reads nothing outside its folder: links may be part of a cloned repository, too.

    The built-in templates are not confined, as installers may link them from a store.
    """

    def get_source(self, environment: jinja2.Environment, template: str) -> Any:
        folder = Path(self.searchpath[0]).resolve()
        if not folder.joinpath(*split_template_path(template)).resolve().is_relative_to(folder):
            what = "this is a link that leaves the folder of templates"
            raise jinja2.TemplateSyntaxError(what, 1, template, self._path(template))
        return super().get_source(environment, template)


@jinja2.pass_context  # so that jinja calls it while it renders, where the line is known
def _refuse_unquoted(_context: jinja2.runtime.Context, value: Any) -> Any:
    """Refuse a value that no filter has passed."""
    if isinstance(value, Markup):
        return value
    text = str(value)  # raises if it is undefined
    names = ", ".join(sorted(FILTERS))
    raise jinja2.TemplateRuntimeError(f"{text[:100]!a} is written without a filter that quotes it, one of {names}")


def _mark(function: Any) -> Any:
    def quote(*arguments: Any) -> Markup:
        for undefined in (it for it in arguments if isinstance(it, jinja2.Undefined)):
            str(undefined)  # raises
        return Markup(function(*arguments))  # noqa: S704 - see autoescape

    return quote


def _broken(where: str, what: str) -> BuildError:
    todo = "correct the template; `envbuild eject DIR` writes the built-in ones, to compare or to start again"
    return BuildError(f"a template cannot be used: {what}", where=where, todo=todo)


def built_in() -> dict[str, bytes]:
    """Return the built-in templates by name."""
    return {path.name: path.read_bytes() for path in sorted(data_folder("templates").glob("*.j2"))}


def build_context(
    recipe: Recipe, requirements: bytes, pylock: bytes, templates: Path | None, *, wheelhouse: bool = False
) -> dict[str, bytes]:
    """Return files by name: two Dockerfiles, .dockerignore, requirements.txt, pylock.toml, README.md and the check.

    `Dockerfile` requires BuildKit, `Dockerfile.classic` works with any builder; the image of either has the files,
    variables, labels and user of the assembled image. `templates` is a folder whose templates replace the built-in ones
    of the same name. With `wheelhouse` nothing is downloaded: the caller puts all wheels into the folder `wheels` and
    all packages into `debs`. BuildError if a value cannot be written safely, or a template is broken.
    """
    found = templates_with(templates)
    values = _values(recipe, wheelhouse=wheelhouse)
    rendered = {file: found.render(name, values) for file, name in RENDERED.items()}
    return rendered | context_check(recipe) | {"requirements.txt": requirements, "pylock.toml": pylock}


def context_check(recipe: Recipe) -> dict[str, bytes]:
    """Return the files of the start-up check, by their paths in a context."""
    return {f"{CHECK}/{posixpath.basename(path)}": content for path, content in check_files(recipe).items()}


def _values(recipe: Recipe, *, wheelhouse: bool) -> dict[str, Any]:
    beside = bool(recipe.wheels) if wheelhouse else any(map(needs_file, recipe.wheels))
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
        "check_files": [
            ("0755" if path == PROGRAM else "0644", posixpath.basename(path), path) for path in check_files(recipe)
        ],
    }


def _pullable(base_name: str) -> str | None:
    """Return the name of a base that engines can pull by digest; None for a folder or a bootstrapped base."""
    try:
        reference = Reference.parse(base_name)
    except ValueError:
        return None
    return base_name if reference.digest else None


def check_templates(folder: Path) -> None:
    """Render a folder's templates for two invented recipes, before the long work.

    UsageError if the folder has no template or has one that is not a regular file, BuildError for a broken template.
    """
    names = sorted(built_in())
    todo = f"give a folder with any of {', '.join(names)}; envbuild eject DIR writes them"
    if not folder.is_dir():
        raise UsageError("the folder of templates does not exist", where=str(folder), todo=todo)
    there = [folder / name for name in names if (folder / name).is_symlink() or (folder / name).exists()]
    if not there:
        raise UsageError("the folder has no template that envbuild uses", where=str(folder), todo=todo)
    for path in (it for it in there if not it.is_file()):
        what = "a template is not a regular file"
        raise UsageError(what, where=str(path), todo="put a file there, or remove it to keep the built-in template")
    for recipe in _recipes():
        for wheelhouse in (False, True):
            build_context(recipe, b"", b"", folder, wheelhouse=wheelhouse)


def _recipes() -> Iterator[Recipe]:
    """Yield one with everything and one with as little as possible, so that templates take all branches."""
    wheel = LockedWheel(
        name="trial", version="1", filename="trial-1-py3-none-any.whl", sha256=_DIGEST, size=1, url="file:///trial"
    )
    package = SystemPackage(
        name="libtrial1", version="1:1", architecture="amd64", filename="pool/libtrial1.deb", sha256=_DIGEST, size=1
    )
    whole = Recipe(
        base_name=f"trial@{_DIGEST}",
        base_digest=_DIGEST,
        python_path="/usr/bin/python3.11",
        target=Target(python="3.11.2", machine="x86_64", glibc="2.36"),
        wheels=(wheel,),
        packages=(package,),
        variables=(("TRIAL", "1"),),
        labels=(("dev.envbuild.variant", "cpu"),),
    )
    yield whole
    yield replace(whole, base_name="debian:trial", wheels=(), packages=(), variables=(), labels=())
