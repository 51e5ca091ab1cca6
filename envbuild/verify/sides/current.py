"""The stamp that holds for a model as it is now, and the manifest beside it."""

from envbuild.errors import StampError
from envbuild.manifest.reader import MAX_MANIFEST
from envbuild.oci.digest import Digest
from envbuild.stamp.objects import open_model
from envbuild.stamp.record import Stamp, manifest_name
from envbuild.verify.sides.model import StampedModel, train_image

_ANEW = "stamp it with the run that made it: envbuild from-manifest MANIFEST --push REPOSITORY --stamp MODEL"
_OR_MANIFEST = "or give the run's manifest instead of the model"


def current_stamp(it: StampedModel) -> Stamp:
    """The newest stamp; StampError without one, or where the model was replaced since: it would be another model's."""
    before = it.stamp or it.history.left
    if before is None or it.history.displaced:
        what = f"{it.history.unstamped}, so that nothing says which environment made it"
        raise StampError(what, where=it.uri, todo=f"{_ANEW}; {_OR_MANIFEST}")
    if it.stamp is None or not it.history.current:
        what = f"the model was replaced after it was stamped at {before.created}: what it names made another model"
        raise StampError(what, where=f"{it.uri}, {before.anchor.name}", todo=f"{_ANEW}; {_OR_MANIFEST}")
    return it.stamp


def manifest_copy(it: StampedModel, stamp: Stamp) -> bytes | None:
    """The copy that `it.manifest` was read from; None where it has been changed since."""
    own = train_image(stamp)
    if own is None:
        return None
    with open_model(it.uri) as model:
        data = model.store.read(manifest_name(own), limit=MAX_MANIFEST)
    return data if data is not None and Digest.of(data) == own.manifest_sha256 else None
