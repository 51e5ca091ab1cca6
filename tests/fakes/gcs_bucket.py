"""What lies in a bucket of the fake Cloud Storage, and what the bucket's settings forbid."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any


class RefusedError(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One content of an object, with its metadata."""

    data: bytes
    generation: int
    metageneration: int = 1
    properties: Mapping[str, Any] = field(default_factory=dict)
    """What a client may set: metadata, contentType, holds, retention, contexts."""


@dataclass(kw_only=True)
class Bucket:
    """What lies in one bucket."""

    objects: dict[str, Stored] = field(default_factory=dict)
    archived: list[tuple[str, Stored]] = field(default_factory=list)
    """Older contents, kept when `versioning` is on."""
    softly_deleted: list[tuple[str, Stored]] = field(default_factory=list)
    """What was removed for good, kept when `soft_delete` is on."""
    versioning: bool = False
    soft_delete: bool = False
    uniform_access: bool = False
    requester_pays: bool = False
    payers: set[str] = field(default_factory=set)
    """Projects that the caller may bill."""
    retention: float = 0.0
    """Seconds from its creation in which an object can neither be replaced nor deleted."""
    default_hold: bool = False
    """Whether new objects begin under an event-based hold."""
    update_interval: float = 0.0
    """Seconds that have to pass between two changes of one object."""
    denied: set[str] = field(default_factory=set)
    """Permissions that the caller has not."""
    _newest: int = 0
    _touched: dict[str, float] = field(default_factory=dict)

    def put(self, name: str, data: bytes, metadata: Mapping[str, str] | None = None, **properties: Any) -> Stored:
        """Store a new content under a name; it begins with metageneration 1 and no metadata of the one before."""
        self.remove(name)
        # Real generations are microseconds since 1970 too.
        self._newest = max(self._newest + 1, time.time_ns() // 1000)
        properties |= {"metadata": dict(metadata)} if metadata else {}
        properties |= {"eventBasedHold": True} if self.default_hold else {}
        self.objects[name] = Stored(data=data, generation=self._newest, properties=properties)
        return self.objects[name]

    def change(self, name: str, new: Stored) -> None:
        """Put new metadata in the place of the old, of the generation that it is for."""
        if name in self.objects and self.objects[name].generation == new.generation:
            self.objects[name] = new
        else:
            at = next(at for at, (_, old) in enumerate(self.archived) if old.generation == new.generation)
            self.archived[at] = (name, new)

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        old = self.objects.pop(name, None)
        if old and self.versioning:
            self.archived.append((name, old))
        elif old and self.soft_delete:
            self.softly_deleted.append((name, old))

    def remove_generation(self, name: str, generation: int) -> None:
        """Remove one generation for good, whether it is the live one or not."""
        gone = self.find(name, str(generation))
        if self.objects.get(name) is gone:
            self.objects.pop(name)
        self.archived = [one for one in self.archived if one[1] is not gone]
        if gone and self.soft_delete:
            self.softly_deleted.append((name, gone))

    def find(self, name: str, generation: str | None, *, deleted: bool = False) -> Stored | None:
        """Return an object, or the content of one generation of it."""
        if deleted:
            return next(
                (old for key, old in self.softly_deleted if (key, str(old.generation)) == (name, generation)), None
            )
        current = self.objects.get(name)
        if generation is None or (current and current.generation == int(generation)):
            return current
        return next((old for key, old in self.archived if key == name and old.generation == int(generation)), None)

    def held(self, *, versions: bool, deleted: bool) -> Iterator[tuple[str, Stored]]:
        """Yield what a listing is made from."""
        if deleted:
            yield from self.softly_deleted
            return
        yield from self.objects.items()
        yield from self.archived if versions else ()

    def check_payer(self, project: str | None) -> None:
        """Refuse who does not pay where the requester has to (Cloud Storage, "Requester Pays")."""
        if project is not None and project not in self.payers:
            what = "does not have serviceusage.services.use access to the Google Cloud project."
            why = "Permission 'serviceusage.services.use' denied on resource (or it may not exist)."
            raise RefusedError(403, f"caller {what} {why}", "forbidden")
        if self.requester_pays and project is None:
            raise RefusedError(400, "Bucket is a requester pays bucket but no user project provided.", "required")

    def check_permission(self, permission: str) -> None:
        """Refuse what the caller may not do."""
        if permission in self.denied:
            what = f"caller does not have {permission} access to the Google Cloud Storage object."
            why = f"Permission '{permission}' denied on resource (or it may not exist)."
            raise RefusedError(403, f"{what} {why}", "forbidden")

    def check_removable(self, where: str, stored: Stored | None) -> None:
        """Refuse to replace or delete what is held or retained; its metadata may change all the same."""
        if stored is None:
            return
        cannot = "cannot be deleted, overwritten or archived until"
        for key, kind in (("temporaryHold", "Temporary"), ("eventBasedHold", "Event-Based")):
            if stored.properties.get(key):
                message = f"Object '{where}' is under active {kind} hold and {cannot} hold is removed."
                raise RefusedError(403, message, "objectUnderActiveHold")
        until = self._until(stored)
        if until > datetime.now(UTC):
            message = f"Object '{where}' is subject to bucket's retention policy and {cannot} {until.isoformat()}"
            raise RefusedError(403, message, "retentionPolicyNotMet")

    def _until(self, stored: Stored) -> datetime:
        own = (stored.properties.get("retention") or {}).get("retainUntilTime")
        bucket = datetime.fromtimestamp(stored.generation / 1e6 + self.retention, UTC)
        return max(bucket, datetime.fromisoformat(own)) if own else bucket

    def check_rate(self, where: str) -> None:
        """Refuse a change that comes too soon after the one before (Cloud Storage, "Quotas and limits")."""
        now = time.monotonic()
        if now - self._touched.get(where, -self.update_interval) < self.update_interval:
            limit = "exceeded the rate limit for object mutation operations (create, update, and delete)."
            raise RefusedError(429, f"The object {where} {limit} Please reduce your request rate.", "rateLimitExceeded")
        self._touched[where] = now

    def check_access(self, sent: Mapping[str, Any]) -> None:
        """Refuse access lists where access is uniform."""
        if self.uniform_access and sent.keys() & {"acl", "predefinedAcl"}:
            message = "Cannot insert legacy ACL for an object when uniform bucket-level access is enabled."
            raise RefusedError(400, message, "invalid")
