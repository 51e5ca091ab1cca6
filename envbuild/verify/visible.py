"""Whether data in Cloud Storage can be seen with the credentials of this machine."""

from envbuild.errors import EnvbuildError
from envbuild.stamp.gcs import GcsStore, connected
from envbuild.stamp.store import parse_model_uri


def visible(uri: str) -> bool | None:
    """Whether the object, or anything in the folder, at a gs:// URI can be seen; None where nobody can be asked.

    Without credentials, or where Cloud Storage cannot be reached, nothing is known.
    """
    try:
        place = parse_model_uri(uri)
        if place.bucket is None:
            return None
        with connected() as client:
            here, above = (GcsStore(client, place.bucket, folder) for folder in (place.path, place.parent))
            return above.state(place.name) is not None or bool(here.names(deep=True))
    except EnvbuildError as error:
        return False if getattr(error.__cause__, "code", None) in (403, 404) else None
