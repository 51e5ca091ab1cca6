"""One registry, as the distribution specification's requests (OCI distribution-spec 1.1, "Endpoints").

Uploads are POST and one PUT with a known length: Artifact Registry takes no chunks, and no registry needs them. A layer
that is still being written goes by one PATCH between them, as Docker and go-containerregistry send everything.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, BinaryIO, Self

import httpx

from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.image import DOCKER_INDEX, DOCKER_MANIFEST, INDEX, MANIFEST, Descriptor, Opener
from envbuild.registry.auth import Authorizer, Credentials, read_body, retry_after
from envbuild.registry.faults import CHECK_REGISTRY, Access, printable, redacted, refusal_error
from envbuild.registry.transport import (
    LONG_ANSWER,
    Progress,
    Transport,
    WrongBlobError,
    api_root,
    blob_reader,
    resolve_location,
    same_origin,
    verified_chunks,
)
from envbuild.retry import TRANSIENT_STATUSES, Retry, Transient


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A manifest as the registry sent it."""

    data: bytes
    media_type: str
    """The Content-Type, without parameters."""
    header_digest: str
    """The Docker-Content-Digest header; empty without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request, which may be sent more than once."""

    method: str
    url: httpx.URL
    access: Access
    source: str = ""
    """Another repository to read from in the same request (mount)."""
    headers: dict[str, str] = field(default_factory=dict)
    body: Callable[[], bytes | Iterable[bytes]] | None = None
    """Returns the body for each sending."""
    large: bool = False
    timeout: float | None = None
    """Seconds until the registry must begin to answer; None for the default."""
    expected: frozenset[int] = frozenset()
    """Statuses besides success that the caller handles."""

    @property
    def scopes(self) -> tuple[str, ...]:
        actions = "pull,push" if self.access.action == "push" else "pull"
        own = f"repository:{self.access.repository}:{actions}"
        return (own, f"repository:{self.source}:pull") if self.source else (own,)


MANIFEST_LIMIT = 4 << 20
"""Bytes of the largest manifest that is read; every registry takes as much (distribution-spec, "Pushing Manifests")."""
_ACCEPT = f"{MANIFEST}, {INDEX}, {DOCKER_MANIFEST}, {DOCKER_INDEX}"
_LARGE = 8 << 20
"""From this size on an upload gets its own token: tokens may expire while other blobs are sent (moby #33558)."""
_ERROR_BODY = 64 << 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HOPS = 5
_PAGE = 1000
"""Tags of one request."""
_PAGES, _LISTING_SECONDS = 1000, 600.0
"""Pages of one listing, and seconds for all of them."""
_NO_REFERRERS_API = frozenset({400, 404, 405, 406, 501})
"""Answers of registries without the referrers API."""


class Registry:
    """A registry's client; its methods raise RegistryError and may be called from several threads."""

    def __init__(
        self, host: str, *, credentials: Credentials | None = None, retry: Retry | None = None, keep_alive: bool = True
    ) -> None:
        self.host = host
        self._root = api_root(host)
        self._transport = Transport(self._root, keep_alive=keep_alive)
        self._auth = Authorizer(self._transport, self._root, host, credentials)
        self._retry = retry or Retry()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()

    def stop(self) -> None:
        """End all requests now, from any thread; each raises RegistryError in its own."""
        self._transport.stop()

    def check(self) -> None:
        """RegistryError when `stop` was called."""
        self._transport.check()

    def manifest(self, repository: str, target: str) -> Manifest:
        """Get the manifest or index that a tag or digest names, of at most 4 MiB."""
        call = self._call("GET", repository, f"manifests/{target}", headers={"Accept": _ACCEPT})
        response, data = self._send(call)
        headers = response.headers
        if len(data) > MANIFEST_LIMIT:
            raise RegistryError("a manifest over 4 MiB is refused", where=redacted(call.url))
        media_type = headers.get("content-type", "").partition(";")[0].strip()
        return Manifest(data=data, media_type=media_type, header_digest=headers.get("docker-content-digest", ""))

    def manifest_digest(self, repository: str, target: str) -> str | None:
        """The digest that the registry gives for a tag or digest; None if absent, empty if its answer has none."""
        headers, expected = {"Accept": _ACCEPT}, frozenset({404})
        call = self._call("HEAD", repository, f"manifests/{target}", headers=headers, expected=expected)
        response = self._send(call)[0]
        return None if response.status_code == 404 else response.headers.get("docker-content-digest", "")

    def has_manifest(self, repository: str, digest: Digest) -> bool:
        """True when the manifest is there."""
        return self.manifest_digest(repository, str(digest)) is not None

    def tags(self, repository: str) -> tuple[str, ...]:
        """All tags of a repository, sorted; RegistryError if there is none, or for an answer that lists no tags."""
        tags = list[str]()
        for _ in self._pages(f"the tags of {repository}"):
            page, more = self._tags_page(repository, tags[-1] if tags else "")
            tags += page
            if not (page and more):
                break
        return tuple(sorted(set(tags)))

    def has_tags(self, repository: str) -> bool:
        """Whether anything in a repository has a tag; a repository that does not exist yet has none."""
        try:
            return bool(self._tags_page(repository, "", limit=1)[0])
        except RegistryError as error:
            if error.status != 404:
                raise
            return False

    def _pages(self, listing: str) -> Iterator[None]:
        """Yield before each page of a listing; RegistryError if it has too many or takes too long."""
        end = time.monotonic() + _LISTING_SECONDS
        for _ in range(_PAGES):
            yield
            if time.monotonic() > end:
                what = f"{self.host} has not listed {listing} after {_LISTING_SECONDS:.0f} s"
                raise RegistryError(what, todo=CHECK_REGISTRY)
        raise RegistryError(f"{self.host} lists {listing} on more than {_PAGES} pages", todo=CHECK_REGISTRY)

    def _tags_page(self, repository: str, last: str, limit: int = _PAGE) -> tuple[list[str], bool]:
        """A page of tags, and whether there are more (distribution-spec, "Listing Tags")."""
        query = {"n": str(limit)} | ({"last": last} if last else {})
        call = self._call("GET", repository, "tags/list", query=query)
        response, data = self._send(call)
        try:
            return [str(tag) for tag in json.loads(data)["tags"] or []], "link" in response.headers
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RegistryError("the answer does not list tags", where=redacted(call.url)) from error

    def referrers(self, repository: str, digest: Digest) -> list[bytes] | None:
        """The pages of the list of a manifest's referrers; None if the registry keeps none.

        Distribution-spec, "Listing Referrers".
        """
        pages = list[bytes]()
        headers, expected = {"Accept": INDEX}, _NO_REFERRERS_API
        call = self._call("GET", repository, f"referrers/{digest}", headers=headers, expected=expected)
        for _ in self._pages(f"the referrers of {digest}"):
            response, page = self._send(call)
            if not response.is_success:
                return None
            pages.append(page)
            following = response.links.get("next", {}).get("url", "")
            if not following:
                break
            call = replace(call, url=resolve_location(self._root, call.url, following))
        return pages

    def put_manifest(self, repository: str, target: str, data: bytes, media_type: str) -> None:
        """Store a manifest under a tag or its digest; RegistryError when the registry answers another digest."""
        headers = {"Content-Type": media_type}
        call = self._call("PUT", repository, f"manifests/{target}", "push", headers=headers, body=lambda: data)
        digest = self._send(call)[0].headers.get("docker-content-digest", "")
        if digest and digest != str(Digest.of(data)):
            what = f"{self.host} stored other bytes than envbuild sent: {printable(digest)}"
            raise RegistryError(what, where=redacted(call.url), todo=CHECK_REGISTRY)

    def delete_tag(self, repository: str, tag: str) -> None:
        """Remove a tag, and not its manifest (distribution-spec, "Deleting Tags"); not every registry supports it."""
        self._send(self._call("DELETE", repository, f"manifests/{tag}", "push"))

    def has_blob(self, repository: str, digest: Digest, *, size: int | None = None, action: str = "push") -> bool:
        """True when the blob is there; RegistryError when its size differs."""
        call = self._call("HEAD", repository, f"blobs/{digest}", action, expected=frozenset({404}))
        response = self._send(call)[0]
        if response.status_code == 404:
            return False
        length = response.headers.get("content-length", "")
        if size is not None and length.isdecimal() and int(length) not in (0, size):
            todo = "build with --no-remote-cache, and find out who published a layer with a wrong size"
            raise RegistryError(f"{digest} has {length} bytes there, not {size}", where=redacted(call.url), todo=todo)
        return True

    def open_blob(self, repository: str, descriptor: Descriptor) -> BinaryIO:
        """Open a blob for reading; at its end RegistryError is raised when its digest differs.

        After a broken connection the reading resumes where it broke.
        """

        def open_at(start: int) -> httpx.Response:
            headers = {"Range": f"bytes={start}-"} if start else {}
            call = self._call("GET", repository, f"blobs/{descriptor.digest}", headers=headers)
            return self._retry.run(lambda _: self._answer(call), pause=self._transport.pause)

        return blob_reader(open_at, descriptor, self._retry)

    def small_blob(self, repository: str, descriptor: Descriptor) -> bytes:
        """A blob of at most 4 MiB that others may have put there; empty if it is gone, longer, or has other bytes."""
        if descriptor.size > MANIFEST_LIMIT:
            return b""
        try:
            with self.open_blob(repository, descriptor) as file:
                return file.read()
        except WrongBlobError:
            return b""
        except RegistryError as error:
            if error.status != 404:
                raise
            return b""

    def put_blob(
        self, repository: str, descriptor: Descriptor, opener: Opener, *, progress: Progress | None = None
    ) -> None:
        """Send a blob, the whole of it again after a failure.

        BuildError when the opener's bytes are not the descriptor's; then the last of them are never sent.
        """
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(descriptor.size)}

        def attempt(number: int) -> None:
            # The reply to the try before may have been lost after the registry had stored the blob.
            if number > 1 and self.has_blob(repository, descriptor.digest):
                return
            place = self._open_upload(repository)
            call = Call(
                method="PUT",
                url=_with_digest(place, descriptor.digest),
                access=self._access(repository, "push"),
                headers=headers,
                body=lambda: verified_chunks(opener, descriptor, progress or (lambda _: None), self._transport.check),
                large=descriptor.size >= _LARGE,
                timeout=LONG_ANSWER,
            )
            self._answer(call).close()

        self._retry.run(attempt, pause=self._transport.pause)

    def put_growing(
        self, repository: str, pieces: Callable[[], Iterator[bytes]], finished: Callable[[], Descriptor]
    ) -> None:
        """Send a blob once, whose descriptor `finished` returns after the last piece.

        RegistryError for any failure: the blob must then be sent as others are.
        """
        send = partial(Call, access=self._access(repository, "push"), large=True, timeout=LONG_ANSWER)
        try:
            place = self._open_upload(repository)
            headers = {"Content-Type": "application/octet-stream"}
            with closing(self._answer(send(method="PATCH", url=place, headers=headers, body=pieces))) as response:
                place = resolve_location(self._root, place, response.headers.get("location") or str(place))
            url = _with_digest(place, finished().digest)
            self._answer(send(method="PUT", url=url, body=lambda: b"")).close()
        except Transient as transient:
            raise transient.error from transient

    def mount(self, repository: str, digest: Digest, *, source: str) -> bool:
        """Mount a blob of another repository of this registry; False when it has to be sent."""
        query = {"mount": str(digest), "from": source}
        call = self._call("POST", repository, "blobs/uploads/", "push", query=query, source=source, body=lambda: b"")
        try:
            return self._send(call)[0].status_code == 201
        except RegistryError:
            # A mount that fails, often for lack of the right to read the source, does not prevent the upload.
            return False

    def check_push(self, repository: str) -> None:
        """Open an upload and cancel it: the only request whose answer is the right to push."""
        place = self._retry.run(lambda _: self._open_upload(repository), pause=self._transport.pause)
        # Registries need not support DELETE; an open upload expires by itself.
        with suppress(RegistryError, Transient):
            self._answer(Call(method="DELETE", url=place, access=self._access(repository, "push"))).close()

    def _open_upload(self, repository: str) -> httpx.URL:
        """Open an upload; return its address."""
        call = self._call("POST", repository, "blobs/uploads/", "push", body=lambda: b"")
        with closing(self._answer(call)) as response:
            location = response.headers.get("location")
            if not location:
                what = f"{self.host} opened no upload"
                raise RegistryError(what, where=redacted(call.url), status=response.status_code)
            return resolve_location(self._root, call.url, location)

    def _call(
        self,
        method: str,
        repository: str,
        path: str,
        action: str = "pull",
        *,
        query: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Call:
        url = self._root.join(f"/v2/{repository}/{path}")
        if query:
            url = url.copy_with(params=httpx.QueryParams(query))
        return Call(method=method, url=url, access=self._access(repository, action), **more)

    def _access(self, repository: str, action: str) -> Access:
        return Access(host=self.host, repository=repository, action=action)

    def _send(self, call: Call) -> tuple[httpx.Response, bytes]:
        """Send with retries: the response and the body of a GET, of at most a manifest's size and one byte."""

        def attempt(_: int) -> tuple[httpx.Response, bytes]:
            with closing(self._answer(call)) as response:
                has_body = call.method == "GET" and response.is_success
                return response, read_body(response, MANIFEST_LIMIT) if has_body else b""

        return self._retry.run(attempt, pause=self._transport.pause)

    def _answer(self, call: Call) -> httpx.Response:
        """Send once, and once more with a new login after 401; Transient or RegistryError unless it succeeds."""
        response = self._follow(call)
        if response.status_code == 401 and same_origin(response.request.url, self._root):
            response.close()
            self._auth.renew(response)
            response = self._follow(call)
        if response.is_success or response.status_code in call.expected:
            return response
        with closing(response):
            fault = refusal_error(response, read_body(response, _ERROR_BODY), call.access, self._auth.hints)
            if response.status_code in TRANSIENT_STATUSES:
                raise Transient(fault, after=retry_after(response))
            raise fault

    def _follow(self, call: Call) -> httpx.Response:
        """Send, and follow the redirects of reading requests: registries redirect to a blob store."""
        url = call.url
        for _ in range(_HOPS):
            # Credentials are for the registry itself, never for a host that it redirects to.
            own = same_origin(url, self._root)
            login = self._auth.header(call.scopes, call.access, fresh=call.large) if own else {}
            content = call.body() if call.body else None
            response = self._transport.send(
                call.method, url, headers=call.headers | login, content=content, timeout=call.timeout
            )
            if response.status_code not in _REDIRECTS or call.body is not None:
                return response
            response.close()
            url = resolve_location(self._root, url, response.headers.get("location", ""))
        raise RegistryError(f"{self.host} redirects without end", where=redacted(call.url))


def _with_digest(place: httpx.URL, digest: Digest) -> httpx.URL:
    """The address that completes an upload."""
    # Appended, not merged: the registry's own query may be signed as it is written.
    query = b"&".join(part for part in (place.query, f"digest=sha256%3A{digest.hex}".encode()) if part)
    return place.copy_with(query=query)
