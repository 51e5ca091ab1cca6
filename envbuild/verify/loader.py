"""Proves that a framework's CUDA libraries are found in an image, from the files that it is made of."""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from packaging.version import Version

from envbuild.match.profiles import Profiles
from envbuild.match.stack import Stack
from envbuild.oci.digest import Digest
from envbuild.oci.rootfs import resolve
from envbuild.recipe import Base, Recipe
from envbuild.verify.compiler import compiler_findings
from envbuild.verify.ground import read_ground
from envbuild.verify.image import Case, framework_wheel, make_case
from envbuild.verify.opened import CUDA, Opening, core, cudnn_openings, openings, stem
from envbuild.verify.proof import LoaderFinding, LoaderProof
from envbuild.verify.search import Loaded, Lost, Process
from envbuild.verify.shelf import Shelf
from envbuild.verify.versions import cudnn_fits, cudnn_floor

_Losses = Sequence[tuple[Opening, Lost]]
_CUDNN = re.compile(r"libcudnn\.so\.\d+")
_BROUGHT_BY = {"cudart": "cuda-runtime", "cublasLt": "cublas", "cupti": "cuda-cupti", "nvrtc": "cuda-nvrtc"}
"""Stems of the distributions whose names are not the library's own in lower case."""


def prove_loading(
    stack: Stack, recipe: Recipe, base: Base, wheels: Mapping[Digest, Path], profiles: Profiles, facts: Path
) -> LoaderProof:
    """Do what the loader would do in the image; `wheels` are verified files by their sha256.

    `facts` is a folder that remembers what was read, by content. WheelError and BaseError where files cannot be read.
    """
    row = framework_wheel(stack, profiles)
    name = f"{row.distribution} {row.version}"
    if row.cuda is None:
        return LoaderProof(framework=name, cuda=False, findings=())
    with ExitStack() as opened:
        shelf = Shelf(recipe, wheels, facts, opened)
        case = make_case(stack, row, recipe, base, profiles, read_ground(base, facts), shelf)
        findings = tuple(_findings(case, recipe.python_path))
        shelf.keep()
    return LoaderProof(framework=name, cuda=True, findings=findings)


def _findings(case: Case, program: str) -> Iterator[LoaderFinding]:
    process = case.process()
    losses = [(Opening(name=program), lost) for lost in process.start(program)]
    plan = openings(case.framework, case.wheel, case.site, case.shelf.files)
    _warm(case, plan)
    for opening in plan:
        losses += _open(process, opening)
    for library in [it for it in process.loaded if _CUDNN.fullmatch(posixpath.basename(it.path))]:
        for opening in cudnn_openings(library.real, case.beside(library.real), f"{case.wheel.cuda}"):
            losses += _open(process, opening)
    libraries = [it for it in process.loaded if it.real and CUDA.fullmatch(posixpath.basename(it.path))]
    yield from (_found(case, it) for it in libraries)
    yield from _missing(case, losses)
    for library in libraries:
        yield from _fit(case, library)
    yield from _two_sources(case)
    yield from compiler_findings(case)


def _warm(case: Case, plan: Sequence[Opening]) -> None:
    """Read side by side what is likely to be loaded: the rest is read when it is."""
    names = {posixpath.basename(it.name) for it in plan}
    likely = re.compile(r"libcudnn_\w+\.so\.\d+|libnvJitLink\.so\.\d+|libtorch_\w+\.so")
    files = case.shelf.files
    case.shelf.warm(it for it in files if (name := posixpath.basename(it)) in names or likely.fullmatch(name))


def _open(process: Process, opening: Opening) -> list[tuple[Opening, Lost]]:
    caller = process.find(opening.by) if opening.by else process.program
    if opening.by and caller is None:
        return []  # the caller itself is lost, which is said already
    return [(opening, lost) for lost in process.open(opening.name, caller)[1]]


def _found(case: Case, library: Loaded) -> LoaderFinding:
    via, _, owner = library.via.partition(" of ")
    via = f"{via} of {case.short(owner)}" if owner else via
    version = case.version(library.real)
    says = f"{case.short(library.real)}{f' ({version})' if version else ''}, by {via}"
    name = posixpath.basename(library.path)
    return LoaderFinding(kind="found", library=name, says=says, path=library.real, via=via, version=version)


def _missing(case: Case, losses: _Losses) -> Iterator[LoaderFinding]:
    """One finding for each library: a fault where anything needs it, else a note, else nothing."""
    for name in dict.fromkeys(lost.name for _, lost in losses):
        told = [(opening, lost) for opening, lost in losses if lost.name == name and not opening.quiet]
        needed = [it for it in told if not it[0].without]
        for opening, lost in (needed or told)[:1]:
            by = f"{case.short(lost.wanted_by)} wants it, and " if lost.wanted_by else ""
            so = f"; {opening.without}" if opening.without else ""
            where, todo = _remedy(case, name)
            yield LoaderFinding(
                kind="note" if opening.without else "missing",
                library=case.short(name),
                says=f"{by}{case.short(lost.why)}{where}{so}",
                todo="" if opening.without else todo,
            )


def _remedy(case: Case, name: str) -> tuple[str, str]:
    """Where it lies all the same, and what can be done."""
    base = posixpath.basename(name)
    if places := [posixpath.dirname(path) for path in case.places(base) if resolve(case.tree, path)]:
        row = "a [[library_path]] row in profiles/cuda.toml, or ENV in the base"
        return f"; it lies in {case.short(places[0])}", f"put {places[0]} on LD_LIBRARY_PATH: {row}"
    known = stem(base)
    requirement = case.wheel.requirement(_BROUGHT_BY.get(known, known.lower()))
    if requirement:
        return "; it is nowhere in the image", f"install {requirement}, which brings {base}"
    if CUDA.fullmatch(base):
        return "; it is nowhere in the image", f"give a base that has {base} by --base, or use --variant cpu"
    return "; it is nowhere in the image", f"give a base that has {base} by --base"


def _fit(case: Case, library: Loaded) -> Iterator[LoaderFinding]:
    """The version of a library against the one that the framework was built with."""
    name, version = posixpath.basename(library.path), case.version(library.real)
    if _CUDNN.fullmatch(name):
        floor, source = cudnn_floor(case.framework, case.wheel, case.profiles)
        fits = cudnn_fits(version, floor)
        needs = f"{case.wheel.pin} takes cuDNN {floor} or a later minor version of it ({source})"
        if fits is None:
            yield LoaderFinding(kind="note", library=name, says=f"{needs}; which one this is cannot be told")
        elif not fits:
            todo = f"install cuDNN {floor} or a later minor version of the same major one"
            yield LoaderFinding(kind="unfit", library=name, says=f"{needs}; this is {version}", todo=todo)
    if stem(name) == "cudart" and version and _minor(version) < _minor(f"{case.wheel.cuda}"):
        says = f"CUDA {version} is older than the {case.wheel.cuda} that {case.wheel.pin} was built with"
        yield LoaderFinding(kind="note", library=name, says=says)


def _minor(version: str) -> tuple[int, ...]:
    return Version(version).release[:2]


def _two_sources(case: Case) -> Iterator[LoaderFinding]:
    """CUDA has one source in an image: which of two copies is taken depends on who loads it first."""
    wheels, base = (
        {core(path): path for path in paths if core(path)} for paths in (case.shelf.files, case.ground.tree)
    )
    for name in sorted(wheels.keys() & base.keys()):
        library = posixpath.basename(wheels[name])
        says = f"it comes from a wheel ({case.short('/' + wheels[name])}) and from the base (/{base[name]})"
        todo = "give a base without CUDA by --base, or take CUDA from the base by --cuda-source base"
        yield LoaderFinding(kind="twice", library=library, says=says, todo=todo)
