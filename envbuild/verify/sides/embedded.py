"""The model that an image's server takes: where it looks for one, and what lies there."""

import json
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from envbuild.capture.redact import scrub_file_name, scrub_line
from envbuild.manifest.artifact import Model, ModelFile
from envbuild.oci.rootfs import Tree, place_of

_URI, _FOLDER, _DEFAULT = "AIP_STORAGE_URI", "ENVBUILD_MODEL_FOLDER", "/model"
"""What tells a server where the model lies, which counts first, and where it lies if nothing does."""
_STAMP = "envbuild/"
"""What a stamp writes beside a model is no part of it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server looks unless it is told otherwise when it is started."""

    path: str = ""
    """In the image, without the leading slash; empty for what lies elsewhere."""
    uri: str = ""
    """Of what lies elsewhere."""
    said: bool = False
    """Whether a variable of the image says so."""

    def has(self, path: str) -> bool:
        """Whether a file of the image is, or lies in, this place."""
        return bool(self.path) and (path == self.path or path.startswith(f"{self.path}/"))


def model_place(variables: Mapping[str, str], folder: str) -> Place:
    """Read an image's variables as the ready server does; `folder` is where programs start."""
    said = variables.get(_URI) or variables.get(_FOLDER)
    parts = urlsplit(said or _DEFAULT)
    if parts.scheme not in ("", "file"):
        return Place(uri=said or "", said=True)
    path = unquote(parts.path) if parts.scheme else said or _DEFAULT
    return Place(path=place_of(posixpath.join(folder or "/", path)), said=bool(said))


def model_inside(tree: Tree, place: Place, name: str) -> Model | None:
    """The model that lies there by size and digests; None where nothing does, and nobody says that it should.

    Without files it says where else the model is taken from, or in `unread` why it is not known. Two images may have
    two models in one place, so the image's name is a part of the URI.
    """
    if not place.path:
        return Model(uri=scrub_line(place.uri) or f"{name}:/", unread=None if place.uri else "it is all of the image")
    uri, link = f"{name}:/{place.path}", next(_links(tree, place), None)
    if link is not None:
        unread = f"/{link} is a link to {tree[link].target}, and links are not followed"
        return Model(uri=uri, unread=scrub_line(unread))
    files = tuple(_files(tree, place))
    if not files:
        return Model(uri=uri) if place.said else None
    # The only file is the model by itself, whatever its name.
    alone = len(files) == 1 and not uri.endswith(f"/{files[0].path}")
    return Model(uri=f"{uri}/{files[0].path}" if alone else uri, files=files, file_count=len(files))


def _links(tree: Tree, place: Place) -> Iterator[str]:
    """Links on the way to it, and in it."""
    parts = place.path.split("/")
    above = ("/".join(parts[:count]) for count in range(1, len(parts)))
    return (it for it in (*above, *filter(place.has, tree)) if it in tree and tree[it].kind == "link")


def _files(tree: Tree, place: Place) -> Iterator[ModelFile]:
    for path in sorted(tree):
        inner = path[len(place.path) + 1 :] or posixpath.basename(path)
        if place.has(path) and tree[path].text and not inner.startswith(_STAMP):
            yield ModelFile(path=scrub_file_name(inner), **json.loads(tree[path].text))
