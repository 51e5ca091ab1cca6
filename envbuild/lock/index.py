"""What indexes and folders offer: files of a project (simple repository API, HTML) and the size of a file."""

from dataclasses import dataclass
from html.parser import HTMLParser
from http import HTTPStatus
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import url2pathname

from packaging.utils import InvalidSdistFilename, NormalizedName, canonicalize_name, parse_sdist_filename
from packaging.version import InvalidVersion, Version

from envbuild.errors import LockError
from envbuild.lock.settings import IndexSettings, asked_url, bare_url
from envbuild.lock.tags import parsed_wheel
from envbuild.lock.web import Web, retried
from envbuild.oci.digest import Digest

PAGE_LIMIT = 64 << 20
"""Bytes of a project's page; the largest of the public index has some MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """One file that an index or a folder offers."""

    name: NormalizedName
    version: Version
    filename: str
    url: str
    """Without credentials, query and fragment."""
    sha256: Digest | None = None
    """As the index says it; None where it says nothing."""
    requires_python: str | None = None
    yanked: str | None = None
    """Why it was withdrawn (PEP 592), which may be empty; None when it was not."""

    @property
    def is_wheel(self) -> bool:
        """False for source distributions."""
        return self.filename.endswith(".whl")


def files_of(client: Web, settings: IndexSettings, project: str) -> tuple[IndexFile, ...]:
    """Every file of a project in all places; LockError when a place cannot be read."""
    name = canonicalize_name(project)
    found: list[IndexFile] = []
    for index in settings.indexes:
        found += _page(client, asked_url(index, name))
    for place in settings.find_links:
        found += _page(client, asked_url(place)) if "://" in place else _folder(Path(place))
    return tuple(file for file in found if file.name == name)


def size_of(client: Web, url: str) -> int:
    """The size of a file in bytes, without downloading it."""
    path = local_path(url)
    if path is not None:
        return _local_size(path)
    size = retried(lambda: _asked_size(client, url), url)
    if size is None:
        raise LockError("the index does not say how big the file is", where=bare_url(url), todo="use another index")
    return size


def local_path(url: str) -> Path | None:
    """The path that a `file://` address names; None for any other address."""
    parts = urlsplit(url)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


def index_file(url: str, *, requires_python: str | None = None, yanked: str | None = None) -> IndexFile | None:
    """Read a link; None when it leads to neither a wheel nor a source distribution."""
    parts = urlsplit(url)
    filename = unquote(parts.path.rpartition("/")[2])
    identity = _identity(filename)
    if identity is None:
        return None
    algorithm, _, value = parts.fragment.partition("=")
    try:
        sha256 = Digest(value.lower()) if algorithm == "sha256" else None
    except ValueError:
        sha256 = None
    return IndexFile(
        name=identity[0],
        version=identity[1],
        filename=filename,
        url=bare_url(url),
        sha256=sha256,
        requires_python=requires_python,
        yanked=yanked,
    )


def parse_page(text: str, url: str) -> tuple[IndexFile, ...]:
    """Read a page of links."""
    parser = _Links()
    parser.feed(text)
    base = urljoin(url, parser.base)
    links = [
        index_file(urljoin(base, href), requires_python=python, yanked=yanked) for href, python, yanked in parser.links
    ]
    return tuple(link for link in links if link is not None)


class _Links(HTMLParser):
    """Collects the anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.links: list[tuple[str, str | None, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        href = values.get("href")
        if tag == "base" and href:
            self.base = href
        if tag == "a" and href:
            yanked = values["data-yanked"] or "" if "data-yanked" in values else None
            self.links.append((href, values.get("data-requires-python"), yanked))


def _page(client: Web, url: str) -> tuple[IndexFile, ...]:
    """The links of a page; none when there is no such page."""
    from envbuild.network import read_document  # noqa: PLC0415 - it imports httpx, which few warm locks do

    def ask() -> tuple[bytes, str, str] | None:
        with client.stream("GET", url, headers={"Accept": "text/html"}) as answer:
            if answer.status_code == HTTPStatus.NOT_FOUND:
                return None
            answer.raise_for_status()
            data = read_document(answer.iter_bytes(), PAGE_LIMIT)
            return data, answer.encoding or "utf-8", str(answer.url)

    found = retried(ask, url)
    if found and len(found[0]) > PAGE_LIMIT:
        what = f"the page of an index has more than {PAGE_LIMIT >> 20} MiB"
        raise LockError(what, where=bare_url(url), todo="check the index, and any proxy before it")
    return parse_page(found[0].decode(found[1], "replace"), found[2]) if found else ()


def _folder(path: Path) -> tuple[IndexFile, ...]:
    """The files in a folder, or the one file."""
    try:
        paths = sorted(path.iterdir()) if path.is_dir() else [path]
    except OSError as error:
        raise LockError("the find-links folder cannot be read", where=str(path), todo=str(error)) from error
    files = [index_file(file.absolute().as_uri()) for file in paths]
    return tuple(file for file in files if file is not None)


def _identity(filename: str) -> tuple[NormalizedName, Version] | None:
    wheel = parsed_wheel(filename)
    if wheel is not None:
        return wheel[:2]
    try:
        return parse_sdist_filename(filename)
    except (InvalidSdistFilename, InvalidVersion):
        return None


def _local_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise LockError("the wheel cannot be read", where=str(path), todo="check the find-links folder") from error


def _asked_size(client: Web, url: str) -> int | None:
    """Content-Length of HEAD, else the total in Content-Range of a first byte, for servers that refuse HEAD."""
    answer = client.head(url)
    if answer.is_success and answer.headers.get("Content-Length", "").isdigit():
        return int(answer.headers["Content-Length"])
    with client.stream("GET", url, headers={"Range": "bytes=0-0"}) as part:
        part.raise_for_status()
        total = part.headers.get("Content-Range", "").rpartition("/")[2] or part.headers.get("Content-Length", "")
    return int(total) if total.isdigit() else None
