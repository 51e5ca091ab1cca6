"""Application Default Credentials: which file, and what makes it useless elsewhere."""

import json
from pathlib import Path

import pytest

from envbuild.errors import UsageError
from envbuild.local.contract import TARGET, adc_findings, adc_mount
from envbuild.local.model import Settled

USER = {"type": "authorized_user", "refresh_token": "hush"}


def write(path: Path, value: object = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value or USER))
    return path


def test_the_file_is_looked_for_as_googles_libraries_do(tmp_path):
    named = write(tmp_path / "named.json")
    config = write(tmp_path / "config/application_default_credentials.json")
    home = write(tmp_path / "home/.config/gcloud/application_default_credentials.json")
    environment = {
        "HOME": str(tmp_path / "home"),
        "CLOUDSDK_CONFIG": str(config.parent),
        "GOOGLE_APPLICATION_CREDENTIALS": str(named),
    }
    for expected, name in ((named, "GOOGLE_APPLICATION_CREDENTIALS"), (config, "CLOUDSDK_CONFIG"), (home, "HOME")):
        mount = adc_mount(environment)
        assert (mount.source, mount.target, mount.read_only) == (expected, TARGET, True)
        del environment[name]


@pytest.mark.parametrize("content", [None, "", "hush", "[]", '{"client_id": "hush"}', '{"type": 1}'])
def test_without_credentials_it_says_how_to_get_some(tmp_path, content):
    path = tmp_path / "key.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError) as error:
        adc_mount({"GOOGLE_APPLICATION_CREDENTIALS": str(path)})
    assert error.value.where == str(path)
    assert "gcloud auth application-default login" in error.value.todo
    assert "hush" not in str(error.value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (USER, None),
        ({"type": "service_account", "private_key": "hush"}, None),
        ({"type": "external_account", "credential_source": {"url": "http://169.254.169.254/"}}, None),
        ({"type": "external_account", "credential_source": {"file": "/var/run/token"}}, "the file /var/run/token"),
        ({"type": "external_account", "credential_source": {"executable": {"command": "hush"}}}, "run a program"),
        ({"type": "external_account", "credential_source": {"certificate": {}}}, "a certificate"),
        (
            {
                "type": "impersonated_service_account",
                "source_credentials": {"type": "external_account", "credential_source": {"file": "/t"}},
            },
            "the file /t",
        ),
        ({"type": "impersonated_service_account", "source_credentials": USER}, None),
    ],
)
def test_credentials_that_are_elsewhere_are_told(tmp_path, value, said):
    path = write(tmp_path / "adc.json", value)
    mount = adc_mount({"GOOGLE_APPLICATION_CREDENTIALS": str(path)})
    found = list(adc_findings(Settled(mounts=(mount,))))
    assert [it.severity for it in found] == (["warning"] if said else [])
    assert all(said in it.says and "hush" not in it.says and it.todo for it in found if said)
    assert list(adc_findings(Settled())) == []
