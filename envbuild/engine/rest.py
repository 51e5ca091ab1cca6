"""What the engine's first builder makes on its way, and would keep: removed, whoever hung up."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import docker
from docker.errors import APIError, DockerException, NotFound
from requests import RequestException

_QUIET = 2.0
"""Seconds without anything new, after which an engine that was hung up on has ended; it copies files to the end."""
_COPIES = ("COPY ", "ADD ")


def had_images(client: docker.DockerClient) -> frozenset[str]:
    """The ids of all images of the engine, those without a name too."""
    return frozenset(str(it["Id"]) for it in client.api.images(all=True))


@dataclass(slots=True)
class Rest:
    """The containers and images of one build."""

    client: docker.DockerClient
    before: frozenset[str]
    """The images that the engine had, which are never removed."""
    made: list[tuple[str, str]] = field(default_factory=list)
    _copies: bool = False

    def note(self, kind: str, identity: str) -> None:
        """Take a `container` or an `image` that was made, or the `step` that begins."""
        self._copies = kind == "step" and identity.startswith(_COPIES)
        if kind != "step":
            self.made.append((kind, identity))

    def remove(self, *, ended: bool = True, patience: float = 0) -> None:
        """Remove them, the last first, as images stand on each other; bases and what has a name stay.

        `patience` is how many seconds the engine has for what it does not give away yet. Where it has not `ended` by
        itself, it may just be making more, which it tells nobody.
        """
        started = changed = time.monotonic()
        with suppress(DockerException, RequestException):
            while self.made:
                late, left = not ended and self._note_late(), self._left()
                now = time.monotonic()
                changed = now if late or left else changed
                calm = ended or (now - changed >= _QUIET and not self._is_copying())
                if (calm and not left) or now - started >= patience:
                    return
                time.sleep(0.2)

    def _is_copying(self) -> bool:
        """Whether there is an image to come that could be told from those of others."""
        last = next((short for kind, short in reversed(self.made) if kind == "image"), "")
        on_base = any(it.removeprefix("sha256:").startswith(last) for it in self.before)
        return self._copies and not on_base

    def _left(self) -> bool:
        """Remove what can be; whether anything is left that can be later."""
        return sum(self._is_left(kind, identity) for kind, identity in reversed(self.made)) > 0

    def _is_left(self, kind: str, identity: str) -> bool:
        api = self.client.api
        try:
            if kind == "container":
                api.remove_container(identity, force=True, v=True)
                return False
            found = api.inspect_image(identity)
            if found["Id"] in self.before or _named(found):
                return False
            for one in api.containers(all=True, filters={"ancestor": identity}):
                api.remove_container(one["Id"], force=True, v=True)
            api.remove_image(identity)
        except NotFound:
            return False
        except APIError:
            return True
        return False

    def _note_late(self) -> bool:
        """Take the images that appeared after the engine was hung up on; whether there were any."""
        late: list[str] = []
        with suppress(APIError):  # others may remove images while they are listed
            new = sorted(had_images(self.client) - self.before)
            late = [it for it in new if not self._told("image", it) and self._is_ours(it)]
        for identity in late:
            self.note("image", identity.removeprefix("sha256:"))
        return bool(late)

    def _is_ours(self, identity: str) -> bool:
        """Whether it was made of a container or on an image that this build made.

        On its base others may build at the same time, even the same, so that a child of it is no proof.
        """
        with suppress(NotFound):
            found = self.client.api.inspect_image(identity)
            # The engine forgets the parent if that was removed first; the config still has it.
            parent = str(found.get("Parent") or (found.get("Config") or {}).get("Image") or "")
            if not _named(found):
                return self._told("container", str(found.get("Container") or "")) or self._made_here(parent)
        return False

    def _made_here(self, image: str) -> bool:
        if image in self.before or not self._told("image", image):
            return False
        with suppress(NotFound):  # it is gone, so it was no base
            return not _named(self.client.api.inspect_image(image))
        return True

    def _told(self, kind: str, identity: str) -> bool:
        whole = identity.removeprefix("sha256:")
        return any(kind == it and whole.startswith(short) for it, short in self.made)


def _named(found: Mapping[str, Any]) -> bool:
    return bool(found.get("RepoTags") or found.get("RepoDigests"))
