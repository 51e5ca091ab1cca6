"""One registry, as the distribution specification's requests (OCI distribution-spec 1.1, "Endpoints").

Uploads are POST and one PUT with a known length: Artifact Registry takes no chunks, and no registry needs them. What is
still being written goes by one PATCH between them, as Docker's engine and go-containerregistry send everything.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import BinaryIO, Self, TypeVar

import httpx

from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.image import DOCKER_INDEX, DOCKER_MANIFEST, INDEX, MANIFEST, Descriptor, Opener
from envbuild.registry.auth import Authorizer, bounded, retry_after
from envbuild.registry.credentials import Credentials
from envbuild.registry.faults import CHECK_REGISTRY, Aim, redacted, refusal
from envbuild.registry.transport import (
    LONG_ANSWER,
    Progress,
    Transport,
    api_root,
    blob_reader,
    hop,
    outgoing,
    same_origin,
)
from envbuild.retry import TRANSIENT_STATUSES, Retry, Transient


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A manifest as the registry sent it."""

    data: bytes
    media_type: str
    """The Content-Type, without parameters."""
    said_digest: str
    """The Docker-Content-Digest header, empty when there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request, which may have to be sent more than once."""

    method: str
    url: httpx.URL
    aim: Aim
    source: str = ""
    """Another repository to read from in the same request (mount)."""
    headers: dict[str, str] = field(default_factory=dict)
    body: Callable[[], bytes | Iterable[bytes]] | None = None
    """Makes the body anew for each sending."""
    large: bool = False
    answer_within: float | None = None
    """Seconds that the registry may take until it begins to answer; None for the usual ones."""
    also: frozenset[int] = frozenset()
    """Statuses beside success that the caller understands."""

    @property
    def scopes(self) -> tuple[str, ...]:
        actions = "pull,push" if self.aim.action == "push" else "pull"
        own = f"repository:{self.aim.repository}:{actions}"
        return (own, f"repository:{self.source}:pull") if self.source else (own,)


MANIFEST_LIMIT = 4 << 20
"""Bytes of the largest manifest that is read; every registry takes as much (distribution-spec, "Pushing Manifests")."""
_ACCEPT = f"{MANIFEST}, {INDEX}, {DOCKER_MANIFEST}, {DOCKER_INDEX}"
_LARGE = 8 << 20
"""From this size on an upload gets a token of its own: tokens may end while others are being sent (moby #33558)."""
_ERROR_BODY = 64 << 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HOPS = 5
_PAGE = 1000
"""Tags that are asked for at once."""
_PAGES, _LISTING_SECONDS = 1000, 600.0
"""Pages of one listing, and seconds for all of them."""
_UNKNOWN = frozenset({400, 404, 405, 406, 501})
"""How registries answer who asks for a list of referrers that they do not keep."""

_T = TypeVar("_T")


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        call = self._manifest_call("GET", repository, target)

        def attempt(_: int) -> Manifest:
            with closing(self._answer(call)) as response:
                media_type = response.headers.get("content-type", "").partition(";")[0].strip()
                said = response.headers.get("docker-content-digest", "")
                return Manifest(data=bounded(response, MANIFEST_LIMIT), media_type=media_type, said_digest=said)

        found = self._tried(attempt)
        if len(found.data) > MANIFEST_LIMIT:
            raise RegistryError("a manifest over 4 MiB is refused", where=redacted(call.url))
        return found

    def manifest_digest(self, repository: str, target: str) -> str | None:
        """The digest that the registry gives for a tag or digest; None when it has none, empty when it does not say."""
        call = self._manifest_call("HEAD", repository, target, also=frozenset({404}))
        response = self._closed(call)
        return None if response.status_code == 404 else response.headers.get("docker-content-digest", "")

    def tags(self, repository: str) -> tuple[str, ...]:
        """All tags of a repository, sorted; RegistryError where it is none, or what is answered is no list of tags."""
        found = list[str]()
        for _ in self._pages(f"the tags of {repository}"):
            page, more = self._tags_after(repository, found[-1] if found else "")
            found += page
            if not (page and more):
                break
        return tuple(sorted(set(found)))

    def _pages(self, what: str) -> Iterator[None]:
        """Yield before each page of a listing; RegistryError where it has too many or takes too long."""
        end = time.monotonic() + _LISTING_SECONDS
        for _ in range(_PAGES):
            yield
            if time.monotonic() > end:
                raise RegistryError(
                    f"{self.host} has not listed {what} after {_LISTING_SECONDS:.0f} s", todo=CHECK_REGISTRY
                )
        raise RegistryError(f"{self.host} lists {what} on more than {_PAGES} pages", todo=CHECK_REGISTRY)

    def has_tags(self, repository: str) -> bool:
        """Whether anything in a repository has a tag; a repository that does not exist yet has none."""
        try:
            return bool(self._tags_after(repository, "", most=1)[0])
        except RegistryError as error:
            if error.status != 404:
                raise
            return False

    def _tags_after(self, repository: str, last: str, most: int = _PAGE) -> tuple[list[str], bool]:
        """Some of the tags, and whether there are more (distribution-spec, "Listing Tags")."""
        query = httpx.QueryParams({"n": str(most)} | ({"last": last} if last else {}))
        url = self._url(f"{repository}/tags/list").copy_with(params=query)
        call = Call(method="GET", url=url, aim=Aim(host=self.host, repository=repository))

        def attempt(_: int) -> tuple[bytes, bool]:
            with closing(self._answer(call)) as response:
                return bounded(response, MANIFEST_LIMIT), "link" in response.headers

        data, more = self._tried(attempt)
        try:
            return [str(tag) for tag in json.loads(data)["tags"] or []], more
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RegistryError("the answer is no list of tags", where=redacted(url)) from error

    def referrers(self, repository: str, digest: Digest) -> list[bytes] | None:
        """The list of what refers to a manifest, in pages; None where the registry keeps none.

        Distribution-spec, "Listing Referrers".
        """
        pages, url = list[bytes](), self._url(f"{repository}/referrers/{digest}")
        for _ in self._pages(f"what refers to {digest}"):
            aim, accept = Aim(host=self.host, repository=repository), {"Accept": INDEX}
            page, more = self._page(Call(method="GET", url=url, aim=aim, headers=accept, also=_UNKNOWN))
            if page is None:
                return None
            pages.append(page)
            if not more:
                break
            url = hop(self._root, url, more)
        return pages

    def _page(self, call: Call) -> tuple[bytes | None, str]:
        """A page, and where the next one is; None where the registry knows no such list."""

        def attempt(_: int) -> tuple[bytes | None, str]:
            with closing(self._answer(call)) as response:
                page = bounded(response, MANIFEST_LIMIT) if response.is_success else None
                return page, response.links.get("next", {}).get("url", "")

        return self._tried(attempt)

    def has_manifest(self, repository: str, digest: Digest) -> bool:
        """True when the manifest is there."""
        return self.manifest_digest(repository, str(digest)) is not None

    def put_manifest(self, repository: str, target: str, data: bytes, media_type: str) -> None:
        """Store a manifest under a tag or its digest; RegistryError when the registry takes it for other bytes."""
        aim = Aim(host=self.host, repository=repository, action="push")
        url = self._url(f"{repository}/manifests/{target}")
        headers = {"Content-Type": media_type}
        response = self._closed(Call(method="PUT", url=url, aim=aim, headers=headers, body=lambda: data))
        said = response.headers.get("docker-content-digest", "")
        if said and said != str(Digest.of(data)):
            raise RegistryError(f"{self.host} stored other bytes than were sent", where=redacted(url))

    def delete_tag(self, repository: str, tag: str) -> None:
        """Remove a tag, and not what it names (distribution-spec, "Deleting Tags"); registries need not know that."""
        aim = Aim(host=self.host, repository=repository, action="push")
        self._closed(Call(method="DELETE", url=self._url(f"{repository}/manifests/{tag}"), aim=aim))

    def has_blob(self, repository: str, digest: Digest, *, size: int | None = None, action: str = "push") -> bool:
        """True when the blob is there; RegistryError when it is said to have another size than this one."""
        aim = Aim(host=self.host, repository=repository, action=action)
        url = self._url(f"{repository}/blobs/{digest}")
        response = self._closed(Call(method="HEAD", url=url, aim=aim, also=frozenset({404})))
        if response.status_code == 404:
            return False
        said = response.headers.get("content-length", "")
        if size is not None and said.isdecimal() and int(said) not in (0, size):
            todo = "build with --no-remote-cache, and find out who published a layer with a wrong size"
            raise RegistryError(f"{digest} has {said} bytes there, not {size}", where=redacted(url), todo=todo)
        return True

    def open_blob(self, repository: str, descriptor: Descriptor) -> BinaryIO:
        """Open a blob for reading; at its end RegistryError is raised when it was not the descriptor's bytes.

        A connection that breaks on the way is taken up again where it broke.
        """
        url = self._url(f"{repository}/blobs/{descriptor.digest}")

        def opened(start: int) -> httpx.Response:
            headers = {"Range": f"bytes={start}-"} if start else {}
            call = Call(method="GET", url=url, aim=Aim(host=self.host, repository=repository), headers=headers)
            return self._tried(lambda _: self._answer(call))

        return blob_reader(opened, descriptor, self._retry)

    def put_blob(
        self, repository: str, descriptor: Descriptor, opener: Opener, *, progress: Progress | None = None
    ) -> None:
        """Send a blob, the whole of it again after a failure.

        BuildError when the opener's bytes are not the descriptor's; then the last of them are never sent.
        """
        aim = Aim(host=self.host, repository=repository, action="push")

        def attempt(number: int) -> None:
            # The reply to the try before may have been lost after the registry had stored the blob.
            if number == 1 or not self.has_blob(repository, descriptor.digest):
                self._put(aim, descriptor, opener, progress or (lambda _: None))

        self._tried(attempt)

    def put_growing(
        self, repository: str, pieces: Callable[[], Iterator[bytes]], finished: Callable[[], Descriptor]
    ) -> None:
        """Send a blob whose digest is known at its end, once; what it is, `finished` says after the last piece.

        RegistryError where anything speaks against it: the blob has to be sent as others are then.
        """
        aim = Aim(host=self.host, repository=repository, action="push")
        try:
            place = self._upload(aim)
            headers = {"Content-Type": "application/octet-stream"}
            call = Call(
                method="PATCH",
                url=place,
                aim=aim,
                headers=headers,
                body=pieces,
                large=True,
                answer_within=LONG_ANSWER,
            )
            with closing(self._answer(call)) as response:
                place = hop(self._root, place, response.headers.get("location") or str(place))
            named = _named(place, finished().digest)
            last = Call(method="PUT", url=named, aim=aim, body=lambda: b"", large=True, answer_within=LONG_ANSWER)
            self._answer(last).close()
        except Transient as transient:
            raise transient.error from transient

    def mount(self, repository: str, digest: Digest, *, source: str) -> bool:
        """Let a blob of another repository of this registry appear in this one; False when it has to be sent."""
        query = httpx.QueryParams({"mount": str(digest), "from": source})
        url = self._url(f"{repository}/blobs/uploads/").copy_with(params=query)
        aim = Aim(host=self.host, repository=repository, action="push")
        call = Call(method="POST", url=url, aim=aim, source=source, body=lambda: b"")
        try:
            return self._closed(call).status_code == 201
        except RegistryError:
            # Whatever speaks against the mount (often the right to read the source) does not speak against sending.
            return False

    def _url(self, path: str) -> httpx.URL:
        return self._root.join(f"/v2/{path}")

    def _manifest_call(self, method: str, repository: str, target: str, also: frozenset[int] = frozenset()) -> Call:
        aim = Aim(host=self.host, repository=repository)
        url = self._url(f"{repository}/manifests/{target}")
        return Call(method=method, url=url, aim=aim, headers={"Accept": _ACCEPT}, also=also)

    def check_push(self, repository: str) -> None:
        """Open an upload and drop it: the only question whose answer is the right to push."""
        aim = Aim(host=self.host, repository=repository, action="push")
        place = self._tried(lambda _: self._upload(aim))
        # Registries need not know DELETE; an upload that is left open ends by itself.
        with suppress(RegistryError, Transient):
            self._answer(Call(method="DELETE", url=place, aim=aim)).close()

    def _upload(self, aim: Aim) -> httpx.URL:
        """Open an upload; return where the blob goes."""
        url = self._url(f"{aim.repository}/blobs/uploads/")
        with closing(self._answer(Call(method="POST", url=url, aim=aim, body=lambda: b""))) as response:
            location = response.headers.get("location")
            if not location:
                raise RegistryError(f"{self.host} opened no upload", where=redacted(url), status=response.status_code)
            return hop(self._root, url, location)

    def _put(self, aim: Aim, descriptor: Descriptor, opener: Opener, progress: Progress) -> None:
        place = self._upload(aim)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(descriptor.size)}
        call = Call(
            method="PUT",
            url=_named(place, descriptor.digest),
            aim=aim,
            headers=headers,
            body=lambda: outgoing(opener, descriptor, progress, self._transport.check),
            large=descriptor.size >= _LARGE,
            answer_within=LONG_ANSWER,
        )
        self._answer(call).close()

    def _tried(self, attempt: Callable[[int], _T]) -> _T:
        return self._retry.run(attempt, pause=self._transport.pause)

    def _closed(self, call: Call) -> httpx.Response:
        """Answer with retries, for the status and headers only."""

        def attempt(_: int) -> httpx.Response:
            response = self._answer(call)
            response.close()
            return response

        return self._tried(attempt)

    def _answer(self, call: Call) -> httpx.Response:
        """Send once, and once more with a new login after 401; Transient or RegistryError unless it succeeds."""
        response = self._followed(call)
        if response.status_code == 401 and same_origin(response.request.url, self._root):
            response.close()
            self._auth.renew(response)
            response = self._followed(call)
        if response.is_success or response.status_code in call.also:
            return response
        with closing(response):
            fault = refusal(response, bounded(response, _ERROR_BODY), call.aim, self._auth.hints)
            if response.status_code in TRANSIENT_STATUSES:
                raise Transient(fault, after=retry_after(response))
            raise fault

    def _followed(self, call: Call) -> httpx.Response:
        """Send, and follow redirects of what only reads: registries send their clients on to a blob store."""
        url = call.url
        for _ in range(_HOPS):
            response = self._sent(call, url)
            if response.status_code not in _REDIRECTS or call.body is not None:
                return response
            response.close()
            url = hop(self._root, url, response.headers.get("location", ""))
        raise RegistryError(f"{self.host} redirects without end", where=redacted(call.url))

    def _sent(self, call: Call, url: httpx.URL) -> httpx.Response:
        # Credentials are for the registry itself, never for where it sends us.
        own = same_origin(url, self._root)
        login = self._auth.header(call.scopes, call.aim, fresh=call.large) if own else {}
        return self._transport.send(
            call.method,
            url,
            headers=call.headers | login,
            content=call.body() if call.body else None,
            answer_within=call.answer_within,
        )


def _named(place: httpx.URL, digest: Digest) -> httpx.URL:
    """Where an upload ends, once its digest is known."""
    # Appended, not merged: the registry's own query may be signed as it is written.
    query = b"&".join(part for part in (place.query, f"digest=sha256%3A{digest.hex}".encode()) if part)
    return place.copy_with(query=query)
