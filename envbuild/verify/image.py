"""The image that a proof is about: base and wheels as one tree of files, told before or after it is assembled."""

import json
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from packaging.version import Version

from envbuild.errors import VerifyError
from envbuild.image.config import config_bytes
from envbuild.match.profiles import FrameworkWheel, Profiles
from envbuild.match.stack import Stack
from envbuild.oci.rootfs import Node, Tree
from envbuild.recipe import Base, Recipe
from envbuild.verify.elf import Elf
from envbuild.verify.ground import Ground
from envbuild.verify.opened import HOST
from envbuild.verify.search import Process, System
from envbuild.verify.shelf import Shelf
from envbuild.verify.versions import version_in_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An image and the framework in it."""

    framework: str
    wheel: FrameworkWheel
    profiles: Profiles
    site: str
    """Absolute path of site-packages."""
    machine: str
    variables: Mapping[str, str]
    """The image's environment."""
    ground: Ground
    shelf: Shelf
    tree: Tree

    def process(self) -> Process:
        """A process of the image, with nothing loaded."""
        path = self.variables.get("LD_LIBRARY_PATH", "")
        return Process(
            System(
                tree=self.tree,
                read=self.read,
                machine=self.machine,
                cache=self.ground.cache,
                library_path=path,
                host=HOST,
            )
        )

    def read(self, path: str) -> Elf | None:
        """Read what lies at an absolute path without links."""
        place = path[1:]
        return self.shelf.read(place) if place in self.shelf.files else self.ground.libraries.get(place)

    def beside(self, path: str) -> list[str]:
        """The names in the folder of an absolute path."""
        folder = posixpath.dirname(path)[1:]
        return [posixpath.basename(it) for it in self.tree if posixpath.dirname(it) == folder]

    def places(self, name: str) -> list[str]:
        """The absolute paths of all files and links of a name."""
        return sorted(f"/{path}" for path, node in self.tree.items() if _is(path, name) and node.kind != "directory")

    def version(self, real: str) -> str:
        """The version of a library: that of NVIDIA's wheel, else what its name says."""
        placed = self.shelf.files.get(real[1:])
        known = placed and any(fnmatchcase(placed.wheel.name, it) for it in self.profiles.nvidia_wheels)
        return placed.wheel.version if placed and known else version_in_name(real)

    def short(self, path: str) -> str:
        """A path for people: below site-packages, where it lies there."""
        return posixpath.normpath(path).removeprefix(f"{self.site}/")


def make_case(
    stack: Stack, row: FrameworkWheel, recipe: Recipe, base: Base, profiles: Profiles, ground: Ground, shelf: Shelf
) -> Case:
    """Join the decision, the base's files and the wheels' files."""
    return Case(
        framework=stack.framework,
        wheel=row,
        profiles=profiles,
        site=f"{recipe.prefix}/lib/python{recipe.target.python_minor}/site-packages",
        machine=recipe.target.machine,
        variables=_variables(recipe, base),
        ground=ground,
        shelf=shelf,
        tree=_tree(ground.tree, shelf.files, recipe.prefix[1:]),
    )


def framework_wheel(stack: Stack, profiles: Profiles) -> FrameworkWheel:
    """The profile's row of what a stack has; without its CUDA in the CPU variant. VerifyError where there is none."""
    rows = [row for row in _rows(stack, profiles) if row.machine == stack.machine]
    if not rows:
        what = f"no profile knows the libraries of {stack.distribution} {stack.version} for {stack.machine}"
        raise VerifyError(what, where="loader proof", todo="make the profiles anew: envbuild profiles refresh")
    if stack.variant == "cpu":
        return replace(rows[0], version=stack.version, cuda=None)
    row = min(rows, key=lambda row: _distance(row.cuda, stack.cuda))
    if Version(stack.version).local is None:
        return row
    # a build of its own CUDA, of which no row tells what it was built with
    return replace(row, version=stack.version, cuda=stack.cuda, cudnn=stack.cudnn, cudnn_built=None)


def _distance(cuda: str | None, wanted: str | None) -> int:
    """0 for the same CUDA, 1 for the same major version, 2 for another, 3 for none."""
    if cuda is None:
        return 3
    majors = (cuda.partition(".")[0], f"{wanted}".partition(".")[0])
    return 0 if cuda == wanted else 2 - (majors[0] == majors[1])


def _rows(stack: Stack, profiles: Profiles) -> Iterator[FrameworkWheel]:
    version = Version(stack.version).public
    for profile in profiles.frameworks:
        for release in profile.releases if profile.name == stack.framework else ():
            if release.version.public == version:
                yield from (row for row in release.wheels if row.distribution == stack.distribution)


def _variables(recipe: Recipe, base: Base) -> dict[str, str]:
    """As they will stand in the image's config."""
    entries = json.loads(config_bytes(recipe, base, ()))["config"]["Env"]
    return dict(entry.partition("=")[::2] for entry in entries)


def _tree(ground: Tree, files: Iterable[str], prefix: str) -> Tree:
    tree = dict(ground)
    tree[f"{prefix}/lib64"] = Node("link", target="lib")
    for path in files:
        tree[path] = Node("file")
        folder = posixpath.dirname(path)
        while folder and folder not in tree:
            tree[folder] = Node("directory")
            folder = posixpath.dirname(folder)
    return tree


def _is(path: str, name: str) -> bool:
    return path.endswith(name) and posixpath.basename(path) == name
