"""Whether the locked wheels are the files that the run had, and the run's own file where an index has it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

from packaging.utils import canonicalize_name

from envbuild.errors import VerifyError
from envbuild.lock.facts import WheelFacts
from envbuild.lock.faults import listed
from envbuild.lock.index import IndexFile
from envbuild.lock.model import Lock, LockedWheel, best_wheel, ranked_tags, same_version
from envbuild.lock.resolution import IndexSession, locked_wheel
from envbuild.manifest.packages import Distribution
from envbuild.report import Reporter
from envbuild.wheel.name import parsed_wheel

Outcome = Literal["identical", "different build", "locally modified", "unknown", "replaced", "left out", "added"]

_SHOWN = 3
_OWN_FILES = (
    "leave out --require-identical to build with these; or give the folder of the run's own wheels: --find-links DIR; "
    "what is replaced or left out follows from --variant, --platform, --upgrade-package and --drop, and what is added "
    "from --variant, --extra, and a record that does not list everything that was installed"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """How a distribution of the run, or one that was added, compares with the lock's wheel."""

    name: str
    version: str
    """As the run had it; of one that was added, as it is locked."""
    outcome: Outcome
    why: str = ""
    """`was built from source`, `by tensorflow-cpu 2.15.1`; nothing where it is identical."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """How the lock compares with the run, for every distribution of the run or the lock."""

    identities: tuple[Identity, ...]
    """Sorted by name."""

    def with_outcome(self, outcome: Outcome) -> tuple[Identity, ...]:
        """The identities with this outcome."""
        return tuple(it for it in self.identities if it.outcome == outcome)

    @property
    def summary(self) -> str:
        """`40 of 42 identical, 1 replaced: tensorflow by tensorflow-cpu 2.15.1; h5py was built from source`."""
        return self._described(f"{len(self.with_outcome('identical'))} of {len(self.identities)} identical")

    @property
    def note(self) -> str:
        """The summary for people: `11 of 11 wheels are the run's own files, 66 left out: a, b, c and 63 more`."""
        same, many = len(self.with_outcome("identical")), len(self.identities) - len(self.with_outcome("left out"))
        wheels = "wheel is the run's own file" if many == 1 else "wheels are the run's own files"
        return self._described(f"{same} of {many} {wheels}")

    def _described(self, head: str) -> str:
        replaced = [f"{it.name} {it.why}" for it in self.with_outcome("replaced")]
        left_out, added = ([it.name for it in self.with_outcome(outcome)] for outcome in ("left out", "added"))
        for outcome, names in (("replaced", replaced), ("left out", left_out), ("added", added)):
            head += f", {len(names)} {outcome}: {listed(names, _SHOWN)}" if names else ""
        differing = [*self.with_outcome("different build"), *self.with_outcome("locally modified")]
        parts = [f"{it.name} {it.why}" for it in differing[:_SHOWN]]
        parts += [f"{len(differing) - _SHOWN} more differ"] if len(differing) > _SHOWN else []
        if unknown := self.with_outcome("unknown"):
            first, many = unknown[0], len(unknown)
            parts.append(f"{many} cannot be compared: {first.name}{', for one,' if many > 1 else ''} {first.why}")
        return "; ".join((head, *parts))

    def to_dict(self) -> dict[str, Any]:
        """All of it for programs."""
        return {"summary": self.summary, "distributions": [asdict(it) for it in self.identities]}

    def with_unknown(self, reasons: Mapping[str, str]) -> "Proof":
        """The proof where wheels, by name, whose RECORD proves nothing are `unknown` instead of `identical`."""
        doubtful = {it.name for it in self.with_outcome("identical")} & reasons.keys()
        pairs = ((it, replace(it, outcome="unknown", why=reasons.get(it.name, ""))) for it in self.identities)
        return Proof(identities=tuple(new if old.name in doubtful else old for old, new in pairs))

    def require_identical(self) -> None:
        """Refuse a lock that is not proven to be the run's; VerifyError names every distribution and why."""
        others = [it for it in self.identities if it.outcome != "identical"]
        if others:
            join = {"replaced": " ", "left out": ": "}
            lines = [f"  {it.name} {it.version}: {it.outcome}{join.get(it.outcome, ': it ')}{it.why}" for it in others]
            many = f"{len(others)} of {len(self.identities)}"
            what = "\n".join([f"{many} distributions are not proven to be the run's:", *lines])
            raise VerifyError(what, where="--require-identical", todo=_OWN_FILES)


class Absence(NamedTuple):
    """Why a distribution of the run is not in the lock, and the one that takes its place, if there is one."""

    why: str
    successor: str = ""


def prove_identity(
    locked: Lock,
    distributions: Iterable[Distribution],
    session: IndexSession,
    reporter: Reporter,
    absent: Mapping[str, Absence] | None = None,
) -> tuple[Lock, Proof, tuple[str, ...]]:
    """Compare each locked wheel with the run's; where another wheel of the release is the run's own, take that.

    The texts name these wheels. `absent` says why distributions of the run are not in the lock, by name.
    """
    run = {str(canonicalize_name(it.name)): it for it in distributions}
    facts = session.reader.all_facts(locked.wheels, reporter)
    wheels, identities, own_wheels = [], [], []
    for wheel, known in zip(locked.wheels, facts, strict=True):
        had = run.get(wheel.name)
        chosen = wheel
        if had is not None and same_version(had.version, wheel.version):
            identity, chosen = _identify(wheel, known, had, session)
            identities.append(identity)
        if chosen is not wheel:
            own_wheels.append(f"{chosen.filename} is the run's own wheel; the resolver chose {wheel.filename}")
        wheels.append(chosen)
    compared = {it.name for it in identities}
    for name, had in ((name, it) for name, it in run.items() if name not in compared):
        absence = (absent or {}).get(name, Absence("it is not among what was locked"))
        successor = {name, canonicalize_name(absence.successor)}
        other = next((it for it in locked.wheels if it.name in successor), None)
        outcome: Outcome = "replaced" if other else "left out"
        why = f"by {other.name} {other.version}" if other else absence.why
        identities.append(Identity(name=name, version=had.version or "", outcome=outcome, why=why))
    named = {*run, *(canonicalize_name(it.successor) for it in (absent or {}).values())}
    why = "is not in the run's record"
    identities += [_identity(it, "added", why) for it in locked.wheels if it.name not in named]
    lock = replace(locked, wheels=tuple(wheels))
    proof = Proof(identities=tuple(sorted(identities, key=lambda it: it.name)))
    return lock, proof, tuple(own_wheels)


def choose_allowed_files(locked: Lock, distributions: Iterable[Distribution], session: IndexSession) -> Lock:
    """Take the file that the run's record allows, where a resolver took another one of the release."""
    run = {str(canonicalize_name(it.name)): it for it in distributions}
    wheels = []
    for wheel in locked.wheels:
        had, own = run.get(wheel.name), None
        allowed = set(had.origin.hashes) if had and same_version(had.version, wheel.version) else set()
        if allowed and wheel.sha256.hex not in allowed:
            files = [it for it in _find_siblings(wheel, session) if it.sha256 and it.sha256.hex in allowed]
            own = best_wheel(((it.filename, it) for it in files), session.target)
        wheels.append(locked_wheel(own, session.reader.size(own)) if own else wheel)
    return replace(locked, wheels=tuple(wheels))


def _identify(
    wheel: LockedWheel, facts: WheelFacts | None, had: Distribution, session: IndexSession
) -> tuple[Identity, LockedWheel]:
    """Compare one wheel with the run's; also the wheel to take: the run's own where that fits the target."""
    outcome, why = _compare(wheel, facts, had)
    if outcome == "identical" and (mismatch := session.reader.known_mismatch(wheel)):
        outcome, why = "unknown", mismatch
    if outcome == "different build":
        why, own = _explain(wheel, had, session)
        if own is not None:
            return _identity(wheel, "identical", ""), own
    if had.changed_files:
        files = [*had.modified, *had.missing][:_SHOWN]
        named = f" ({', '.join(files)}{', ...' if had.changed_files > len(files) else ''})" if files else ""
        count = f"{had.changed_files} file{'s'[: had.changed_files != 1]}"
        other = f", and {why}" if why else ""
        return _identity(wheel, "locally modified", f"was changed after installation: {count}{named}{other}"), wheel
    return _identity(wheel, outcome, why), wheel


def _identity(wheel: LockedWheel, outcome: Outcome, why: str) -> Identity:
    return Identity(name=wheel.name, version=wheel.version, outcome=outcome, why=why)


def _compare(wheel: LockedWheel, facts: WheelFacts | None, had: Distribution) -> tuple[Outcome, str]:
    """Compare by the file's own digest where the record has one, else by RECORD."""
    origin = had.origin
    exact = origin.sha256 if origin.kind == "archive" and (origin.url or "").endswith(".whl") else None
    allowed = {exact} if exact else set(origin.hashes)
    if len(allowed) == 1:
        return ("identical", "") if wheel.sha256.hex in allowed else ("different build", "")
    if had.content_sha256 is None and had.record_sha256 and not allowed:
        return "unknown", "has a digest of its RECORD as an earlier envbuild took it; capture the run again to compare"
    if had.content_sha256 is None:
        several = "is one of several files that the record allows"
        return "unknown", several if wheel.sha256.hex in allowed else "has no hash in the run's record"
    if facts is None or facts.content is None:
        return "unknown", (facts.doubt if facts else "") or "has a RECORD that only a download could read"
    return ("identical", "") if facts.content == had.content_sha256 else ("different build", "")


def _explain(wheel: LockedWheel, had: Distribution, session: IndexSession) -> tuple[str, LockedWheel | None]:
    """Say where the run's build came from; the run's own wheel where it is on the index and fits the target."""
    origin = had.origin
    if origin.kind == "conda":
        return " ".join(filter(None, ("was built by conda", origin.channel, origin.build))), None
    if origin.kind in {"vcs", "editable"}:
        return "was installed from its sources; this wheel was built from them again", None
    if had.wheel_variant and had.wheel_variant.label != wheel.label:
        return f"was installed as wheel variant {had.wheel_variant.label}", None
    siblings = _find_siblings(wheel, session)
    known = {origin.sha256, *origin.hashes}
    own = next((it for it in siblings if it.sha256 and it.sha256.hex in known), None)
    if own is None and had.content_sha256 is not None:  # by its RECORD
        facts = zip(siblings, session.reader.all_facts(siblings), strict=True)
        own = next((it for it, fact in facts if fact and fact.content == had.content_sha256), None)
    if own is None:
        return "was built from source" if origin.kind == "index" else "is another build", None
    if best_wheel([(own.filename, own)], session.target) is None:
        return f"was {own.filename}, which does not fit {session.target}", None
    return "", locked_wheel(own, session.reader.size(own))


def _find_siblings(wheel: LockedWheel, session: IndexSession) -> list[IndexFile]:
    """The other wheels of the release and wheel variant for this Python; those for the target's machine first."""
    pythons = {(tag.interpreter, tag.abi) for tag in ranked_tags(session.target)}

    def fits(file: IndexFile) -> bool:
        parsed = parsed_wheel(file.filename)
        if parsed is None or parsed.label != wheel.label:
            return False
        return any((tag.interpreter, tag.abi) in pythons for tag in parsed.tags)

    files: Sequence[IndexFile] = session.files(wheel.name)
    found = [it for it in files if it.filename != wheel.filename and same_version(str(it.version), wheel.version)]
    near = session.target.machine
    return sorted(filter(fits, found), key=lambda file: (near not in file.filename, "linux" not in file.filename))
