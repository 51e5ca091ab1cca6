"""Values as words of a Dockerfile (Dockerfile reference, "Parser directives" to "Environment replacement").

A Dockerfile has no general quoting: an instruction ends with its line whatever quotes are open. So what would end a
line is refused, not escaped, and every filter names the field that it refuses.
"""

import json
import re
import shlex
import traceback
import unicodedata
from collections.abc import Callable, Iterator, Mapping
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
from envbuild.lock.formats import WHEELS, is_local
from envbuild.lock.model import LockedWheel, SystemPackage, Target
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference
from envbuild.recipe import Recipe

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
    """Write one word of a shell command: single quotes, in which nothing is special, not even a heredoc's mark."""
    return shlex.quote(_printable(value, field))


def as_package(package: SystemPackage) -> str:
    """Pass what apt-get installs: `libgomp1=12.2.0-14`."""
    return _matching(_PACKAGE, f"{package.name}={package.version}", f"package {package.name!r}", "Debian's names")


def as_deb(package: SystemPackage) -> str:
    """Write the name that `apt-get download` gives a package's file (apt, QuoteString in acquire-item.cc)."""
    version = as_package(package).partition("=")[2].replace(":", "%3a")
    return f"{package.name}_{version}_{as_word(package.architecture, f'architecture of {package.name!r}')}.deb"


def as_number(value: int) -> str:
    """Write a count."""
    return str(int(value))


def as_word(value: str, field: str) -> str:
    """Pass a path, reference, digest or user that needs no quoting at all."""
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
            raise BuildError(
                f"{field} holds the character U+{ord(character):04X}, which a Dockerfile cannot carry safely",
                where=f"{field} = {ascii(value)[:200]}",
                todo="correct the value where it comes from: the manifest, the profile or the base",
            )
    return value


def _matching(pattern: re.Pattern[str], value: str, field: str, allowed: str) -> str:
    if not pattern.fullmatch(value):
        raise BuildError(
            f"{field} is not what a Dockerfile can carry unquoted: {allowed}",
            where=f"{field} = {ascii(value)[:200]}",
            todo="correct the value where it comes from: the manifest, the profile or the base",
        )
    return value


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


_DIGEST: Final = Digest("0" * 64)


def check_templates(folder: Path) -> None:
    """UsageError for a folder that replaces no template or has what is no file, BuildError for a broken template."""
    names = sorted(built_in())
    todo = f"give a folder with any of {', '.join(names)}; envbuild eject DIR writes them"
    if not folder.is_dir():
        raise UsageError("there is no such folder of templates", where=str(folder), todo=todo)
    there = [folder / name for name in names if (folder / name).is_symlink() or (folder / name).exists()]
    if not there:
        raise UsageError("the folder has no template of a name that is used", where=str(folder), todo=todo)
    for path in (it for it in there if not it.is_file()):
        what = "a template has to be a regular file, and this is none"
        raise UsageError(what, where=str(path), todo="put a file there, or remove it to keep the built-in template")
    for recipe in _recipes():
        for wheelhouse in (False, True):
            build_context(recipe, b"", b"", folder, wheelhouse=wheelhouse)


def _recipes() -> Iterator[Recipe]:
    """One with everything and one with as little as there can be, so that templates take their branches."""
    wheel = LockedWheel(
        name="trial", version="1", filename="trial-1-py3-none-any.whl", sha256=_DIGEST, size=1, url="file:///trial"
    )
    package = SystemPackage(
        name="libtrial1", version="1:1", architecture="amd64", filename="pool/libtrial1.deb", sha256=_DIGEST, size=1
    )
    target = Target(python="3.11.2", machine="x86_64", glibc="2.36")
    yield Recipe(
        base_name=f"trial@{_DIGEST}",
        base_digest=_DIGEST,
        python_path="/usr/bin/python3.11",
        target=target,
        wheels=(wheel,),
        packages=(package,),
        variables=(("TRIAL", "1"),),
        labels=(("dev.envbuild.variant", "cpu"),),
    )
    yield Recipe(
        base_name="debian:trial",
        base_digest=_DIGEST,
        python_path="/usr/bin/python3.11",
        target=target,
        wheels=(),
        variables=(),
        labels=(),
    )
