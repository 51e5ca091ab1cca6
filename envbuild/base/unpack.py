"""The files of an image in a folder, for a program that runs in it."""

import os
from pathlib import Path

from envbuild.base.tree import contents, read_tree
from envbuild.oci.image import Image

_CHUNK = 1 << 20


def unpack(image: Image, folder: Path, name: str) -> None:
    """Write what an image shows into an empty folder; BaseError as `read_tree`.

    Owners and special files are left out. Links come last, so that no file is written through one.
    """
    tree = {path: node for path, node in read_tree(image, name).items() if path != ".." and not path.startswith("../")}
    for path, node in tree.items():
        if node.kind == "directory":
            folder.joinpath(path).mkdir(parents=True, exist_ok=True)
    for path, member, content in contents(image, tree, tree.keys(), name):
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("wb") as file:
            while data := content.read(_CHUNK):
                file.write(data)
        place.chmod(0o755 if member.mode & 0o111 else 0o644)
    for path, node in tree.items():
        if node.kind == "link" and not os.path.lexists(folder / path):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).symlink_to(node.target)
