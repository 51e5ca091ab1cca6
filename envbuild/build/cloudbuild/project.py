"""Which project builds."""

from envbuild.errors import UsageError


def find_project(asked: str | None) -> str:
    """Return the project that was asked for, else that of GOOGLE_CLOUD_PROJECT or of the credentials; UsageError."""
    import google.auth  # noqa: PLC0415 - slow, and only needed without --project
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415

    if asked:
        return asked
    try:
        _, project = google.auth.default()  # which asks GOOGLE_CLOUD_PROJECT itself, and gcloud's settings
    except GoogleAuthError:
        project = None
    if not project:
        todo = "give --project, or set GOOGLE_CLOUD_PROJECT"
        raise UsageError("no project is known to build in", where="Cloud Build", todo=todo)
    return str(project)
