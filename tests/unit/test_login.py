"""References with a login in them, and those whose digest is none: both are refused, and neither is shown."""

import pytest

from envbuild.errors import UsageError
from envbuild.oci.reference import refuse_login


@pytest.mark.parametrize("text", ["name:1@sha256:xyz", "h.example.com/x@sha256:xyz", "x@sha512:not_hex"])
def test_a_digest_that_is_none_is_said_to_be_none(text):
    with pytest.raises(UsageError, match="the part after the @ is not a digest") as caught:
        refuse_login(text, "TARGET")
    assert "64 hexadecimal digits" in caught.value.todo


@pytest.mark.parametrize(
    "text", ["u:s3cret@h.example.com/x", "u:s3cret@h.example.com/x@sha256:xyz", "u:s3cret@sha256:1/x"]
)
def test_a_login_is_refused_and_not_shown(text):
    with pytest.raises(UsageError, match="holds no user or password") as caught:
        refuse_login(text, "TARGET")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("text", ["name:1", f"name@sha256:{'0' * 64}", "oci:a@sha256:xyz", "name@sha256:abc"])
def test_what_has_no_login_passes(text):
    refuse_login(text, "TARGET")


def test_what_lies_here_may_be_called_as_it_likes(tmp_path):
    (tmp_path / "a@sha256:xyz").mkdir()
    refuse_login(str(tmp_path / "a@sha256:xyz"), "TARGET")
