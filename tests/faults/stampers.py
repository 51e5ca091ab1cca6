"""Stampers on one model in a bucket, through Google's own client, as a seed decides: who goes on next, what goes wrong."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client

from envbuild.errors import StampConflict
from envbuild.oci.digest import Digest
from envbuild.stamp.gcs import GcsStore
from envbuild.stamp.history import read_snapshot
from envbuild.stamp.objects import Model
from envbuild.stamp.record import StampEntry
from envbuild.stamp.stamping import StampResult, write_stamp
from envbuild.stamp.store import State, Store
from tests.fakes.gcs import FakeGcs, Fault, Kind
from tests.faults.turns import Turns

BUCKET, FOLDER, ANCHOR = "models", "runs/1", "saved_model.pb"
NAME = f"{FOLDER}/{ANCHOR}"
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
ENVIRONMENT = {"ENVBUILD_GCS_TIMEOUT": "3", "DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA": "true"}
"""A stamper may have to wait that long for its turn; and the client asks for nothing by the way, in another thread."""
UNKNOWN = "cannot be known"
_KINDS: tuple[Kind, ...] = ("lost", "lost", "late", "drop", "reset", "status", "status", "half")
_STATUSES = (408, 429, 500, 502, 503, 504)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One stamp that somebody writes."""

    name: str
    """Is recorded as who wrote it."""
    entry: StampEntry
    manifest: bytes
    lock: bytes
    early: bool
    """Whether it looks at the model before it builds."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a job ended."""

    job: Job
    saw: State | None
    """The model as it looked first."""
    result: StampResult | None = None
    error: Exception | None = None

    @property
    def word(self) -> str:
        """What it is counted as."""
        if self.result is not None:
            return "stamped" if self.result.changed else "there already"
        if isinstance(self.error, StampConflict):
            return "conflict"
        return "not to be known" if UNKNOWN in str(self.error) else "error"


@dataclass(kw_only=True)
class Site:
    """The bucket of a schedule, and what others than envbuild did in it."""

    gcs: FakeGcs
    others: dict[str, str]
    """Metadata that is not envbuild's, as it has to be in the end."""
    past: dict[str, dict[str, str]] = field(default_factory=dict)
    """The metadata that contents of the model had which are there no more, by generation."""

    def edit(self, key: str, value: str | None) -> None:
        """Change metadata as somebody who knows nothing of envbuild, and takes care."""
        with self.gcs.lock:
            bucket = self.gcs.bucket(BUCKET)
            old = bucket.objects.get(NAME)
            if old is None:
                return
            metadata = {name: text for name, text in self.gcs.metadata(BUCKET, NAME).items() if name != key}
            for kept in (metadata, self.others):
                kept.update({key: value} if value is not None else {})
            if value is None:
                self.others.pop(key, None)
            new = replace(
                old, metageneration=old.metageneration + 1, properties={**old.properties, "metadata": metadata}
            )
            bucket.change(NAME, new)

    def swap(self, *, keep: bool) -> None:
        """Save another model in its place, with the metadata of the old if `keep`, as copying tools do."""
        with self.gcs.lock:
            self.remove()
            generation = list(self.past)[-1] if self.past else ""
            metadata = self.past.get(generation, {}) if keep else {}
            self.others = {key: value for key, value in metadata.items() if not key.startswith("envbuild-")}
            self.gcs.put(BUCKET, NAME, b"another graph", metadata)

    def remove(self) -> None:
        """Remove the model."""
        with self.gcs.lock:
            bucket = self.gcs.bucket(BUCKET)
            if NAME in bucket.objects:
                self.past[str(bucket.objects[NAME].generation)] = self.gcs.metadata(BUCKET, NAME)
            bucket.remove(NAME)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What a seed decides."""

    seed: int
    stampers: dict[str, tuple[Job, ...]]
    faults: tuple[Fault, ...]
    events: tuple[Callable[[Site], object], ...]
    settings: dict[str, object]
    """Of the bucket."""
    held: bool


def schedule_of(seed: int) -> Schedule:
    """Decide on a schedule."""
    rng = random.Random(seed)

    def early(name: str, at: int) -> bool:
        return random.Random(f"early {seed} {name} {at}").random() < 0.5

    names = [f"s{number}" for number in range(rng.randint(1, 8))]
    stampers = {
        name: tuple(_job(rng, name, at, early(name, at)) for at in range(rng.choice((1, 1, 1, 2)))) for name in names
    }
    settings: dict[str, object] = {"versioning": rng.random() < 0.3, "uniform_access": True}
    settings |= {"retention": 3600.0} if rng.random() < 0.1 else {}
    settings |= {"update_interval": 0.005} if rng.random() < 0.1 else {}
    return Schedule(
        seed=seed,
        stampers=stampers,
        faults=tuple(_fault(rng, names) for _ in range(rng.choice((0, 0, 1, 2, 3, 5, 8)))),
        events=tuple(_event(rng) for _ in range(rng.choice((0, 0, 1, 2, 4)))),
        settings=settings,
        held=rng.random() < 0.1,
    )


def _job(rng: random.Random, name: str, at: int, early: bool) -> Job:
    digest = Digest.of(rng.choice((b"one", b"two", b"three")))
    entry = StampEntry(
        role=rng.choice(("train", "train", "serve")),
        variant=rng.choice(("cpu", "gpu")),
        platform=rng.choice(("linux/amd64", "linux/amd64", "linux/arm64")),
        digest=digest,
        reference=f"127.0.0.1:5000/a@{digest}" if rng.random() < 0.8 else None,
        environment=Digest.of(b"environment"),
    )
    manifest = rng.choice((b"{}", b'{"a": 1}'))
    return Job(name=f"{name}-{at}", entry=entry, manifest=manifest, lock=b"lock", early=early)


def _fault(rng: random.Random, names: list[str]) -> Fault:
    kind = rng.choice(_KINDS)
    operation = "media" if kind == "half" else rng.choice(("patch", "patch", "patch", "get", "insert", "media"))
    times = 999 if rng.random() < 0.03 else rng.choice((1, 1, 2))
    status = rng.choice((*_STATUSES, 403)) if operation == "patch" else rng.choice(_STATUSES)
    client = rng.choice(names)
    return Fault(operation=operation, kind=kind, times=times, status=status, client=client, after=rng.randrange(3))


def _event(rng: random.Random) -> Callable[[Site], object]:
    key, value, keep = rng.choice(("owner", "stage")), rng.choice(("me", "you", None)), rng.random() < 0.5
    match rng.choice(("edit",) * 14 + ("swap", "swap", "remove", "deny")):
        case "swap":
            return lambda site: site.swap(keep=keep)
        case "remove":
            return lambda site: site.remove()
        case "deny":
            return lambda site: site.gcs.deny("storage.objects.update", BUCKET)
        case _:
            return lambda site: site.edit(key, value)


class Noting:
    """A store that remembers how the model looked first."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.saw: State | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)

    def state(self, name: str) -> State | None:
        """Look, and remember the first answer."""
        found = self.store.state(name)
        self.saw = self.saw or found
        return found


def run(seed: int, store_of: Callable[[GcsStore], Store] = lambda store: store) -> tuple[Site, list[Ended]]:
    """Run the schedule of a seed to its end, with nothing under way any more."""
    schedule = schedule_of(seed)
    with FakeGcs() as gcs:
        site = _site(gcs, schedule)
        events = [lambda event=event: event(site) for event in schedule.events]
        turns = Turns(random.Random(f"turns {seed}"), gcs, schedule.stampers, events)
        gcs.gate, gcs.faults = turns.gate, [*schedule.faults]
        ended: list[Ended] = []
        threads = [
            threading.Thread(
                target=_stamper, args=(gcs.url_of(name), jobs, store_of, ended, lambda n=name: turns.leave(n))
            )
            for name, jobs in schedule.stampers.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gcs.apply_late()
        return site, ended


def _site(gcs: FakeGcs, schedule: Schedule) -> Site:
    bucket = gcs.bucket(BUCKET)
    for name, value in schedule.settings.items():
        setattr(bucket, name, value)
    bucket.put(NAME, b"graph", {"owner": "somebody"}, temporaryHold=schedule.held)
    return Site(gcs=gcs, others={"owner": "somebody"})


def _stamper(
    url: str,
    jobs: tuple[Job, ...],
    store_of: Callable[[GcsStore], Store],
    ended: list[Ended],
    leave: Callable[[], None],
) -> None:
    """Write one stamp after the other, as one process would."""
    client = Client(project=None, credentials=AnonymousCredentials(), client_options={"api_endpoint": url})
    try:
        with client:
            for job in jobs:
                ended.append(_stamped(Noting(store_of(GcsStore(client, BUCKET, FOLDER))), job))
    finally:
        leave()


def _stamped(store: Noting, job: Job) -> Ended:
    model = Model(uri=f"gs://{BUCKET}/{FOLDER}", store=store, anchor=ANCHOR)  # type: ignore[arg-type]
    try:
        result = write_stamp(
            model,
            job.entry,
            manifest=job.manifest,
            lock=job.lock,
            now=NOW,
            by=job.name,
            early=read_snapshot(model) if job.early else None,
            pause=lambda tried: None,
        )
    except Exception as error:  # what is no StampError is told by the check
        return Ended(job=job, saw=store.saw, error=error)
    return Ended(job=job, saw=store.saw, result=result)
