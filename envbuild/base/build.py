"""What Dockerfile.base is given: the order for a base, and how it gets its Python."""

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import docker
from packaging.version import Version

from envbuild.base.apt import find_mirror, source_lines
from envbuild.base.debian import debian_base
from envbuild.base.process import running
from envbuild.base.resolve import layout_image, registry_reference
from envbuild.engine.build import built, loaded_base
from envbuild.engine.building import Request
from envbuild.engine.buildkit import can_buildkit, find_client
from envbuild.engine.client import connected
from envbuild.engine.image import Report
from envbuild.engine.inside import Inside, look_inside
from envbuild.engine.push import push_image
from envbuild.errors import BaseError, BuildError, MissingComponentError, RegistryError, UsageError
from envbuild.match import Decision, Profiles
from envbuild.match.base import had_image
from envbuild.oci.image import Image
from envbuild.oci.layout import ARCHITECTURES
from envbuild.oci.reference import DOCKER_HUB, Reference
from envbuild.registry import Registry
from envbuild.registry.credentials import find

_PYTHON = re.compile(r"3\.\d+(?:\.\d+)?\Z")
# Debian policy manual, 5.6.1 "Source" and 5.6.12 "Version".
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(?::[a-z0-9-]+)?=[A-Za-z0-9][A-Za-z0-9.+~:-]*\Z")
_SNAPSHOT = re.compile(r"\d{8}T\d{6}Z\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseOrder:
    """A base that is wanted."""

    parent: str
    """As the engine knows it: a reference, best by digest, or the engine's own id."""
    python: str = ""
    """What its Python has to be: `3.11` or `3.11.2`; empty for the suite's."""
    python_image: str = ""
    """An image with that Python in /usr/local; empty where the parent or its distribution has it."""
    packages: tuple[str, ...] = ()
    """Debian packages, each as NAME=VERSION."""
    sources: str = ""
    """apt's one-line sources, where the parent's own will not do."""
    snapshot: str = ""
    """The day of the distribution's archive: `20240101T000000Z`."""
    snapshot_host: str = ""
    """Where such archives lie, up to the distribution's name."""
    epoch: str = ""
    """SOURCE_DATE_EPOCH, in seconds since 1970; empty for the Dockerfile's own."""

    def __post_init__(self) -> None:
        if self.python and not _PYTHON.match(self.python):
            todo = "give it as 3.11 or 3.11.2"
            raise UsageError(f"{self.python!r} is no version of Python 3", where="--python", todo=todo)
        for package in self.packages:
            if not _PACKAGE.match(package):
                todo = "give NAME=VERSION; `apt-cache madison NAME` on the parent lists the versions"
                raise UsageError(f"{package!r} is no Debian package with its version", where="--package", todo=todo)
        _check_snapshot(self.snapshot, self.snapshot_host)
        _check_open(self.sources, "--sources")
        if self.epoch and not self.epoch.isdecimal():
            todo = "set it to seconds since 1970, or leave it unset"
            raise UsageError(f"{self.epoch!r} is no time", where="SOURCE_DATE_EPOCH", todo=todo)

    @property
    def arguments(self) -> dict[str, str]:
        """The build arguments; those at their defaults are left out."""
        given = {
            "PARENT": self.parent,
            "PYTHON_IMAGE": self.python_image,
            "PYTHON_VERSION": self.python,
            "PACKAGES": " ".join(self.packages),
            "SOURCES": self.sources,
            "SNAPSHOT": self.snapshot,
            "SNAPSHOT_HOST": self.snapshot_host.rstrip("/"),
            "SOURCE_DATE_EPOCH": self.epoch,
        }
        return {name: value for name, value in given.items() if value}

    def command(self, dockerfile: Path, tag: str, platform: str) -> str:
        """The same build by hand, for a shell; no file but the Dockerfile is sent."""
        words = ["docker", "build", "--platform", platform, "--tag", tag]
        for name, value in self.arguments.items():
            words += ["--build-arg", f"{name}={value}"]
        return f"{shlex.join([*words, '-'])} < {shlex.quote(str(dockerfile))}"


def _check_snapshot(snapshot: str, host: str) -> None:
    if bool(snapshot) != bool(host):
        todo = "give both, such as --snapshot 20240101T000000Z --snapshot-host https://HOST/archive"
        raise UsageError("--snapshot and --snapshot-host belong together", where="--snapshot", todo=todo)
    if not snapshot:
        return
    try:
        datetime.strptime(snapshot, "%Y%m%dT%H%M%S%z")
        right = _SNAPSHOT.match(snapshot)
    except ValueError:
        right = None
    if not right:
        todo = "give it as 20240101T000000Z"
        raise UsageError(f"{snapshot!r} names no snapshot", where="--snapshot", todo=todo)
    if not re.match(r"https?://[^\s'\"]+\Z", host):
        raise UsageError(f"{host!r} is no address", where="--snapshot-host", todo="give it as https://HOST/archive")
    _check_open(host, "--snapshot-host")


def _check_open(text: str, where: str) -> None:
    """Refuse what may not become part of an image, as build arguments do."""
    for word in text.split():
        if "://" in word and "@" in urlsplit(word).netloc:
            what = "an address of packages holds a password, and addresses stay in the image's history"
            todo = "name an address without one; give --sources FILE where this machine's own has it"
            raise UsageError(what, where=where, todo=todo)


def decide_python(parent: str, python: str, profiles: Profiles) -> Decision | None:
    """Say which image brings a Python that the parent's distribution has not; None where that is not known.

    Python's own images of the newest suite whose glibc is not newer than the parent's. `parent` is a base of
    `profiles/cuda.toml`, with or without a digest; of others nothing is known.
    """
    row = next(
        (
            it
            for it in profiles.bases
            if parent.partition("@")[0]
            in (it.image, it.image.removeprefix("docker.io/"), it.image.removeprefix("docker.io/library/"))
        ),
        None,
    )
    exact = python.count(".") > 1
    if row is None or not python or (row.python == python and not exact):
        return None
    minor = ".".join(python.split(".")[:2])
    suites = [it for it in profiles.suites if Version(it.glibc) <= Version(row.glibc)]
    suite = next((it for it in suites if had_image(it, python)), None)
    if suite is None:
        return None
    image = profiles.python_image.format(python=python, suite=suite.name)
    lack = f"another patch release of {minor}" if row.python == minor else f"Python {row.python}"
    reason = f"the parent's distribution has {lack}; glibc {suite.glibc} of this image is not newer than {row.glibc}"
    return Decision(what="python image", value=image, reason=reason, source=suite.source)


INSTEAD = "run by hand, where there is one, what --dry-run prints"
_HUB = "https://index.docker.io/v1/"
"""How engines call Docker Hub in logins."""
_APT = Path("/etc/apt")
_WAYS = {
    "python3 is ": "give --python-image an image with that Python in /usr/local, such as python:3.9.18-slim-bullseye, "
    "whose glibc is not newer than the parent's",
    "python3: not found": "give --python, so that the parent's distribution or --python-image brings one",
    "Unable to locate package": "see the package's name; `apt-cache search` on the parent lists them",
    "was not found": "see the version: `apt-cache madison NAME` on the parent lists them; a snapshot may have it",
    "Failed to fetch": "see that containers reach the archive; for an old suite give --snapshot, or --sources FILE",
    "does not have a Release file": "the archive has the suite no more: give --snapshot, or --sources FILE",
}
"""What can be done about what the failed step said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """What a base is built on."""

    name: str
    """As it was asked for, by digest where it lies in a registry."""
    image: Image | None = None
    """What the engine has to be given first; None where it pulls it."""
    sources: str = ""
    """apt's one-line sources, where the parent has none of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeBase:
    """A base that the engine has."""

    id: str
    """The engine's own name of it."""
    inside: Inside


def find_parent(text: str, machine: str, cache: Path, report: Report) -> Parent:
    """Find what --parent names, and pin it; UsageError, BaseError, RegistryError, MissingComponentError."""
    reference = registry_reference(text)
    with connected(INSTEAD):
        pass  # bootstrapping would be in vain
    if reference is None and text.startswith("debian:"):
        suite = text.removeprefix("debian:")
        image = debian_base(suite, machine, cache, report.note)
        return Parent(name=text, image=image, sources="\n".join(source_lines(suite, find_mirror(_APT)).values()))
    if reference is None:
        return Parent(name="oci-layout", image=layout_image(text, machine))
    return Parent(name=pinned(text, report))


def pinned(text: str, report: Report) -> str:
    """Name a registry's image by its digest, as a tag may move; UsageError for what lies in no registry.

    One that no registry answers for is left to the engine, which may have it.
    """
    reference = registry_reference(text)
    if reference is None:
        raise UsageError("this has to be an image in a registry", where=text, todo="push it, and give its reference")
    if reference.digest:
        return str(reference)
    try:
        with Registry(reference.registry) as registry:
            said = registry.manifest_digest(reference.repository, reference.target)
    except RegistryError as error:
        report.note(f"{text} is not pinned by a digest, as its registry does not answer: {error.what}")
        return text
    return f"{reference.name}@{said}" if said else text


def make_base(
    order: BaseOrder, parent: Parent, dockerfile: Path, name: Reference, machine: str, report: Report
) -> MadeBase:
    """Build, name the result in the engine, and look into it; BaseError, with the step's last lines, when it fails."""
    with ExitStack() as stack:
        client = stack.enter_context(connected(INSTEAD))
        local = stack.enter_context(loaded_base(client, parent.image, report)) if parent.image else ""
        order = replace(order, parent=local or parent.name)
        context = Path(stack.enter_context(TemporaryDirectory(prefix="envbuild-")))
        shutil.copy(dockerfile, context / "Dockerfile")
        names = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
        request = Request(
            context=context,
            dockerfile="Dockerfile",
            platform=f"linux/{ARCHITECTURES[machine]}",
            wheels=(),
            network=True,
            arguments=order.arguments | {name: value for name, value in os.environ.items() if name.lower() in names},
        )
        with _told(parent):
            return _built(client, request, order, name, report)


def _built(
    client: docker.DockerClient, request: Request, order: BaseOrder, name: Reference, report: Report
) -> MadeBase:
    by = find_client() if can_buildkit(client) else None
    with built(client, request, report, buildkit=by, running=running, logins=_logins(order)) as image:
        inside = look_inside(client, image.id)
        client.api.tag(image.id, name.name, name.tag or "latest", force=True)
        return MadeBase(id=image.id, inside=inside)


@contextmanager
def _told(parent: Parent) -> Iterator[None]:
    """Say what can be done about a step that failed."""
    try:
        yield
    except BaseError:
        raise
    except BuildError as error:
        way = next((way for said, way in _WAYS.items() if said in error.what), "see what the step printed")
        raise BaseError(error.what, where=f"Dockerfile.base on {parent.name}", todo=way) from error


def _logins(order: BaseOrder) -> Mapping[str, Mapping[str, str]]:
    found = {}
    for text in filter(None, (order.parent, order.python_image)):
        reference = Reference.parse(text)
        if login := engine_login(reference):
            found[login["serveraddress"]] = login
    return found


def engine_login(reference: Reference) -> dict[str, str]:
    """What an engine logs in with at a registry (Docker Engine API, "Authentication"); empty for nothing."""
    found = find(reference.registry, reference.repository).credentials
    if found is None:
        return {}
    host = _HUB if reference.registry == DOCKER_HUB else reference.registry
    secret = {"identitytoken": found.identity_token} if found.identity_token else {"password": found.password}
    return {"username": found.username, "serveraddress": host} | secret


def engine_images() -> frozenset[str] | None:
    """The ids of what the engine has; None where none answers."""
    try:
        with connected(INSTEAD) as client:
            return frozenset(str(it["Id"]) for it in client.api.images())
    except (MissingComponentError, BuildError):
        return None


def push_base(image: str, target: Reference, report: Report, *, machine: str | None = None) -> tuple[Reference, Inside]:
    """Let the engine push one of its images, and see that the registry has it; UsageError, RegistryError.

    It has to be for `machine` where one is named: `x86_64`.
    """
    with connected("build the base where the engine is, and push from there") as client:
        identity = _image_for(client, image, machine)
        inside = look_inside(client, identity)
        name = replace(target, tag=target.tag or "latest")
        sent = push_image(client, identity, name, engine_login(name), report)
    with Registry(name.registry) as registry:
        if not registry.has_manifest(name.repository, sent.digest):
            todo = "push again; another client may have removed it"
            raise RegistryError("the registry has not what was pushed", where=str(name.at(sent.digest)), todo=todo)
    return name.at(sent.digest), inside


def _image_for(client: docker.DockerClient, name: str, machine: str | None) -> str:
    """The engine's id of an image that is for this machine, where one is named."""
    try:
        found = client.images.get(name)
    except (docker.errors.ImageNotFound, docker.errors.NullResource) as error:
        todo = "build it with `envbuild base build`, or name one that `docker images` lists; debian:SUITE works too"
        raise UsageError("the engine has no such image", where=name, todo=todo) from error
    has = f"{found.attrs.get('Os')}/{found.attrs.get('Architecture')}"
    if machine and has != (wanted := f"linux/{ARCHITECTURES[machine]}"):
        todo = "name the image of that platform; an engine keeps one of several under one name"
        raise UsageError(f"the engine's image is for {has}, not {wanted}", where=name, todo=todo)
    return str(found.id)
