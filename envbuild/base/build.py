"""Building a base with the engine from Dockerfile.base, on a parent from a registry, a layout, or Debian's mirror."""

import re
import shlex
import shutil
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import docker

from envbuild.base.apt import SOURCES, find_mirror, source_lines
from envbuild.base.debian import debian_base
from envbuild.base.resolve import layout_image, registry_reference
from envbuild.engine.buildkit import Request, built, loaded_base, require_buildkit
from envbuild.engine.client import connected
from envbuild.engine.container import BaseFacts, inspect_base
from envbuild.engine.load import push_image
from envbuild.errors import BaseError, BuildError, MissingComponentError, RegistryError, UsageError
from envbuild.match.profiles import Profiles
from envbuild.match.rows import CudaArchive
from envbuild.match.stack import Decision
from envbuild.oci.image import Image
from envbuild.oci.layout import ARCHITECTURES
from envbuild.oci.reference import DOCKER_HUB, Reference
from envbuild.registry.auth import find_credentials
from envbuild.registry.client import Registry
from envbuild.report import Reporter

_PYTHON = re.compile(r"3\.\d+(?:\.\d+)?\Z")
# Debian policy manual, 5.6.1 "Source" and 5.6.12 "Version".
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(?::[a-z0-9-]+)?=[A-Za-z0-9][A-Za-z0-9.+~:-]*\Z")
_SNAPSHOT = re.compile(r"\d{8}T\d{6}Z\Z")
_HTTPS = "2.28"
"""The glibc of Debian 10, the first suite whose apt reads https without another package."""
INSTEAD = "run by hand, where there is one, what --dry-run prints"
_HUB = "https://index.docker.io/v1/"
"""The name of Docker Hub in the logins of engines."""
_REMEDIES = {
    "python3 is ": "give --python-image an image with that Python in /usr/local, such as python:3.9.18-slim-bullseye, "
    "whose glibc is not newer than the parent's",
    "python3: not found": "give --python, so that the parent's distribution or --python-image brings one",
    "Unable to locate package": "see the package's name; `apt-cache search` on the parent lists them",
    "was not found": "see the version: `apt-cache madison NAME` on the parent lists them; a snapshot may have it",
    "Failed to fetch": "see that containers reach the archive; for an old suite give --snapshot, or --sources FILE",
    "does not have a Release file": "the archive no longer has the suite: give --snapshot, or --sources FILE",
    ": not found": "see the tag, as registries delete old ones: give a mirror's image, or --cuda for NVIDIA's packages",
}
"""Remedies by a part of the failed step's message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseOrder:
    """The parameters of a base, for Dockerfile.base."""

    parent: str
    """A reference, best by digest, or the engine's own id."""
    python: str = ""
    """The version of its Python: `3.11` or `3.11.2`; empty for the suite's."""
    python_image: str = ""
    """An image with that Python in /usr/local; empty if the parent or its distribution has it."""
    packages: tuple[str, ...] = ()
    """Debian packages, each as NAME=VERSION."""
    sources: str = ""
    """apt's one-line sources, instead of the parent's own."""
    archive: CudaArchive | None = None
    """NVIDIA's packages to install, from its sources."""
    snapshot: str = ""
    """The time of the distribution's archive: `20240101T000000Z`."""
    snapshot_host: str = ""
    """The address of such archives, up to the distribution's name."""
    epoch: str = ""
    """SOURCE_DATE_EPOCH, in seconds since 1970; empty for the Dockerfile's own."""

    def __post_init__(self) -> None:
        if self.python and not _PYTHON.match(self.python):
            todo = "give it as 3.11 or 3.11.2"
            raise UsageError(f"{self.python!r} is not a version of Python 3", where="--python", todo=todo)
        for package in self.packages:
            if not _PACKAGE.match(package):
                todo = "give NAME=VERSION; `apt-cache madison NAME` on the parent lists the versions"
                raise UsageError(f"{package!r} is not a Debian package with a version", where="--package", todo=todo)
        _check_snapshot(self.snapshot, self.snapshot_host)
        _check_open(self.sources, "--sources")
        if self.epoch and not self.epoch.isdecimal():
            todo = "set it to seconds since 1970, or leave it unset"
            raise UsageError(f"{self.epoch!r} is not a time", where="SOURCE_DATE_EPOCH", todo=todo)

    @property
    def arguments(self) -> dict[str, str]:
        """The build arguments, without those at their defaults."""
        given = {
            "PARENT": self.parent,
            "PYTHON_IMAGE": self.python_image,
            "PYTHON_VERSION": self.python,
            "PACKAGES": " ".join((*(self.archive.packages if self.archive else ()), *self.packages)),
            "CUDA": self.archive.cuda if self.archive else "",
            "CUDA_SOURCES": "\n".join(self.archive.lines) if self.archive else "",
            "SOURCES": self.sources,
            "SNAPSHOT": self.snapshot,
            "SNAPSHOT_HOST": self.snapshot_host.rstrip("/"),
            "SOURCE_DATE_EPOCH": self.epoch,
        }
        return {name: value for name, value in given.items() if value}

    def command(self, dockerfile: Path, tag: str, platform: str) -> str:
        """Return the shell command for the same build; only the Dockerfile is sent."""
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
    right = None
    with suppress(ValueError):
        datetime.strptime(snapshot, "%Y%m%dT%H%M%S%z")
        right = _SNAPSHOT.match(snapshot)
    if not right:
        todo = "give it as 20240101T000000Z"
        raise UsageError(f"{snapshot!r} is not the time of a snapshot", where="--snapshot", todo=todo)
    if not re.match(r"https?://[^\s'\"]+\Z", host):
        raise UsageError(f"{host!r} is not an address", where="--snapshot-host", todo="give it as https://HOST/archive")
    _check_open(host, "--snapshot-host")


def _check_open(text: str, where: str) -> None:
    """Refuse addresses with a password, as build arguments become part of the image."""
    for word in text.split():
        if "://" in word and "@" in urlsplit(word).netloc:
            what = "an address of packages holds a password, and addresses stay in the image's history"
            todo = "name an address without one; give --sources FILE where this machine's own has it"
            raise UsageError(what, where=where, todo=todo)


def decide_python(parent: str, python: str, profiles: Profiles) -> Decision | None:
    """Choose an image with a Python that the parent's distribution lacks; None if that is unknown or not needed.

    It is an official Python image of the newest suite whose glibc is not newer than the parent's. `parent` has the tag
    of a base of `profiles/cuda.toml`, with or without a digest: it is that image, or a mirror of it.
    """
    tag = parent.partition("@")[0].rpartition(":")[2]
    row = next((it for it in profiles.bases if it.image.endswith(f":{tag}")), None)
    exact = python.count(".") > 1
    if row is None or not python or (row.python == python and not exact):
        return None
    minor = ".".join(python.split(".")[:2])
    suite = profiles.python_suite(python, newest=row.glibc)
    if suite is None:
        return None
    image = profiles.python_image.format(python=python, suite=suite.name)
    lack = f"another patch release of {minor}" if row.python == minor else f"Python {row.python}"
    reason = f"the parent's distribution has {lack}; glibc {suite.glibc} of this image is not newer than {row.glibc}"
    return Decision(what="python image", value=image, reason=reason, source=suite.source)


def decide_archive(
    cuda: str, python: str, parent: str, profiles: Profiles, machine: str
) -> tuple[CudaArchive, Decision]:
    """Return NVIDIA's packages of this CUDA, and the parent for them: the given one, else the image of the Python.

    UsageError where no packages of the CUDA are known, none for the machine, or no image of the Python.
    """
    archive = next((it for it in profiles.archives if it.cuda == cuda), None)
    if archive is None:
        known = ", ".join(it.cuda for it in profiles.archives)
        todo = f"give one of {known}, or name the packages by --package and --sources"
        raise UsageError(f"no packages of CUDA {cuda} are known", where=f"--cuda {cuda}", todo=todo)
    if not all(f"/{machine} " in line for line in archive.lines):
        what = f"NVIDIA's packages of CUDA {cuda} are known for linux/amd64, not for linux/{ARCHITECTURES[machine]}"
        todo = "give --platform linux/amd64, or name the packages by --package and --sources; "
        todo += "PyTorch and JAX need neither, as their wheels bring CUDA"
        raise UsageError(what, where=f"--cuda {cuda}", todo=todo)
    reason = f"CUDA {cuda} is put on it, by {' '.join(archive.packages)}"
    suite = profiles.python_suite(python, oldest=_HTTPS) if python else None
    if not parent and suite is None:
        what = f"no image of Python {python} is known" if python else "neither the parent nor its Python is named"
        todo = f"give --python {'.'.join(python.split('.')[:2]) or '3.7'}, or --parent"
        raise UsageError(what, where=f"--cuda {cuda}", todo=todo)
    image = profiles.python_image.format(python=python, suite=suite.name) if suite else ""
    return archive, Decision(what="parent", value=parent or image, reason=reason, source=archive.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """The image that a base is built on."""

    name: str
    """The value of --parent, by digest if it is in a registry."""
    image: Image | None = None
    """The image to load into the engine first; None if the engine pulls it."""
    sources: str = ""
    """apt's one-line sources, if the parent has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeBase:
    """A base in the engine."""

    id: str
    """The engine's id."""
    inside: BaseFacts


def find_parent(text: str, machine: str, cache: Path, report: Reporter) -> Parent:
    """Resolve and pin --parent; UsageError, BaseError, RegistryError, MissingComponentError."""
    reference = registry_reference(text)
    with connected(INSTEAD):
        pass  # fail before the long work
    if reference is None and text.startswith("debian:"):
        suite = text.removeprefix("debian:")
        image = debian_base(suite, machine, cache, report)
        return Parent(name=text, image=image, sources="\n".join(source_lines(suite, find_mirror(SOURCES)).values()))
    if reference is None:
        return Parent(name="oci-layout", image=layout_image(text, machine))
    return Parent(name=pinned(text, report))


def pinned(text: str, report: Reporter) -> str:
    """Return a reference by digest, as a tag may move; UsageError for an image outside registries.

    If the registry does not answer, the reference is unchanged: the engine may have the image.
    """
    reference = registry_reference(text)
    if reference is None:
        raise UsageError("not an image in a registry", where=text, todo="push it, and give its reference")
    if reference.digest:
        return str(reference)
    try:
        with Registry(reference.registry) as registry:
            digest = registry.manifest_digest(reference.repository, reference.target)
    except RegistryError as error:
        report.note(f"{text} is not pinned by a digest, as its registry does not answer: {error.what}")
        return text
    return f"{reference.name}@{digest}" if digest else text


def make_base(
    order: BaseOrder, parent: Parent, dockerfile: Path, name: Reference, machine: str, report: Reporter
) -> MadeBase:
    """Build, tag and inspect a base in the engine; BaseError, with the last lines of the failed step."""
    with ExitStack() as stack:
        client = stack.enter_context(connected(INSTEAD))
        local = stack.enter_context(loaded_base(client, parent.image, report)) if parent.image else ""
        order = replace(order, parent=local or parent.name)
        context = Path(stack.enter_context(TemporaryDirectory(prefix="envbuild-")))
        shutil.copy(dockerfile, context / "Dockerfile")
        request = Request(
            context=context,
            dockerfile="Dockerfile",
            platform=f"linux/{ARCHITECTURES[machine]}",
            network=True,
            arguments=order.arguments,
        )
        buildkit = require_buildkit(client, INSTEAD)
        try:
            with built(client, request, report, buildkit=buildkit) as image:
                inside = inspect_base(client, image.id)
                client.api.tag(image.id, name.name, name.tag or "latest", force=True)
                return MadeBase(id=image.id, inside=inside)
        except BaseError:
            raise
        except BuildError as error:
            todo = next((it for part, it in _REMEDIES.items() if part in error.what), "see the output of the step")
            raise BaseError(error.what, where=f"Dockerfile.base on {parent.name}", todo=todo) from error


def engine_login(reference: Reference) -> dict[str, str]:
    """Return an engine's login for a registry (Docker Engine API, "Authentication"); empty for none."""
    found = find_credentials(reference.registry, reference.repository).credentials
    if found is None:
        return {}
    host = _HUB if reference.registry == DOCKER_HUB else reference.registry
    secret = {"identitytoken": found.identity_token} if found.identity_token else {"password": found.password}
    return {"username": found.username, "serveraddress": host} | secret


def engine_images() -> frozenset[str] | None:
    """Return the ids of the engine's images; None if no engine answers."""
    try:
        with connected(INSTEAD) as client:
            return frozenset(str(it["Id"]) for it in client.api.images())
    except (MissingComponentError, BuildError):
        return None


def push_base(
    image: str, target: Reference, report: Reporter, *, machine: str | None = None
) -> tuple[Reference, BaseFacts]:
    """Push one of the engine's images, and check that the registry has it; UsageError, RegistryError.

    With `machine`, such as `x86_64`, the image has to be for it.
    """
    with connected("build the base where the engine is, and push from there") as client:
        identity = _image_for(client, image, machine)
        inside = inspect_base(client, identity)
        name = replace(target, tag=target.tag or "latest")
        sent = push_image(client, identity, name, engine_login(name), report)
    with Registry(name.registry) as registry:
        if not registry.has_manifest(name.repository, sent.digest):
            todo = "push again; another client may have removed it"
            what = "the registry does not have the pushed manifest"
            raise RegistryError(what, where=str(name.at(sent.digest)), todo=todo)
    return name.at(sent.digest), inside


def _image_for(client: docker.DockerClient, name: str, machine: str | None) -> str:
    """Return the engine's id of an image, which has to be for the machine, if one is given."""
    try:
        found = client.images.get(name)
    except (docker.errors.ImageNotFound, docker.errors.NullResource) as error:
        todo = "build it with `envbuild base build`, or name one that `docker images` lists; debian:SUITE works too"
        raise UsageError("the engine does not have the image", where=name, todo=todo) from error
    has = f"{found.attrs.get('Os')}/{found.attrs.get('Architecture')}"
    if machine and has != (expected := f"linux/{ARCHITECTURES[machine]}"):
        todo = "name the image of that platform; an engine keeps one of several under one name"
        raise UsageError(f"the engine's image is for {has}, not {expected}", where=name, todo=todo)
    return str(found.id)
