"""`envbuild doctor`: what it says of machines and of what is stamped, and how it ends."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import RegistryError, UsageError
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference
from envbuild.stamp.record import StampEntry
from envbuild.stamp.stamping import stamp
from envbuild.verify.doctor import Check, checked, ok, target_of, wrong
from envbuild.verify.doctor.machine import (
    answered,
    clock,
    driver_finding,
    google_credentials,
    logins,
    machine_checks,
    room,
    storage,
)
from tests.fakes.artifact_registry import FakeArtifactRegistry
from tests.fakes.gcs import FakeGcs
from tests.fakes.index import closed_port, serving
from tests.fakes.registry import FakeRegistry
from tests.fakes.wheels import make_wheel
from tests.running import run_envbuild
from tests.unit.attesting import REPLACED

NAME = "projects/proj/locations/europe-west1/repositories/images"
HOST = "europe-west1-docker.pkg.dev"
DIGEST = Digest("ab" * 32)
OTHER = Digest("cd" * 32)
DELETE = {"id": "old", "action": 1, "condition": {"tagState": 3, "olderThan": "2592000s"}}
KEEP = {"id": "ours", "action": 2, "condition": {"tagState": 1, "tagPrefixes": ["stamped-"]}}


def doctor(home: Path, *arguments: str, **env: Any) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(("UV_", "PIP_"))}
    variables = kept | {
        "HOME": str(home),
        "ENVBUILD_CACHE": str(home / "cache"),
        "DOCKER_HOST": f"unix://{home}/nobody.sock",
        "NO_GCE_CHECK": "true",
        "PIP_CONFIG_FILE": os.devnull,
        "UV_NO_CONFIG": "1",
        **{name: str(value) for name, value in env.items()},
    }
    return run_envbuild("doctor", *arguments, env=variables)


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, Mapping[str, Any]]:
    return {it["about"]: it for it in json.loads(done.stdout)["findings"]}


@pytest.fixture
def index():
    with serving(make_wheel("tool", "1.0")) as found:
        yield found


@pytest.fixture
def api():
    with FakeArtifactRegistry() as found:
        found.add(NAME, cleanupPolicies={"old": DELETE})
        found.push(NAME, "app", str(DIGEST), "v7", uploaded=datetime.now(UTC) - timedelta(days=10))
        yield found


def stamped(folder: Path, *references: str | None) -> Path:
    model = folder / "model"
    model.mkdir()
    (model / "saved_model.pb").write_bytes(b"graph")
    for variant, reference in zip(("cpu", "gpu"), references, strict=False):
        entry = StampEntry(
            role="train",
            variant=variant,
            platform="linux/amd64",
            reference=reference,
            digest=Digest.parse(reference.partition("@")[2]) if reference else DIGEST,
            environment=Digest("ef" * 32),
        )
        stamp(str(model), entry, manifest=b"{}", lock=b"lock", now=datetime.now(UTC))
    return model


def test_a_healthy_machine_ends_with_0_and_gets_no_cache(tmp_path, index):
    done = doctor(tmp_path, UV_DEFAULT_INDEX=index.url)
    assert done.returncode == 0, done.stderr
    lines = {line[9:].partition(":")[0]: line[:9].strip() for line in done.stdout.splitlines() if line[0] != " "}
    assert {name: lines[name] for name in ("python", "uv", "cache", "index", "engine")} == {
        "python": "ok",
        "uv": "ok",
        "cache": "ok",
        "index": "ok",
        "engine": "note",
    }
    assert "do: start Docker" in done.stdout
    assert not (tmp_path / "cache").exists()


def test_an_index_that_is_down_ends_with_17_and_its_address_has_no_password(tmp_path):
    address = f"http://user:letmein@127.0.0.1:{closed_port()}/simple"
    done = doctor(tmp_path, "--json", UV_DEFAULT_INDEX=address)
    assert done.returncode == 17
    assert "letmein" not in done.stdout + done.stderr
    assert findings(done)["index"]["severity"] == "error"
    assert not json.loads(done.stdout)["healthy"]


def test_offline_asks_nobody(tmp_path, index):
    before = len(index.requests)
    done = doctor(tmp_path, "--offline", "--json", UV_DEFAULT_INDEX=index.url)
    assert done.returncode == 0
    assert "index" not in findings(done)
    assert len(index.requests) == before


def test_programs_on_path_are_looked_for(tmp_path):
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker/config.json").write_text(json.dumps({"credHelpers": {"example.com": "odd"}}))
    done = doctor(tmp_path, "--offline", "--json")
    said = [it["says"] for it in json.loads(done.stdout)["findings"] if it["about"] == "registry logins"]
    assert len(said) == 2
    assert "docker-credential-odd" in said[0]


def test_a_gpu_without_the_toolkit_is_warned_about(tmp_path):
    driver = tmp_path / "proc/driver/nvidia"
    (driver / "gpus/0000:00:04.0").mkdir(parents=True)
    (driver / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 2023\n")
    (driver / "gpus/0000:00:04.0/information").write_text("Model: \t\t Tesla T4\nDevice Minor: \t 0\n")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    check = next(it for it in machine_checks(offline=True, root=tmp_path) if it.about == "gpu")
    gpu, toolkit = check.find()
    assert gpu.agrees
    assert "Tesla T4, driver 535.104.05" in gpu.says
    assert (toolkit.agrees, toolkit.severity) == (False, "warning")
    (tmp_path / "etc/cdi").mkdir(parents=True)
    (tmp_path / "etc/cdi/nvidia.yaml").write_text("cdiVersion: 0.5.0\n")
    assert all(it.agrees for it in check.find())


@pytest.mark.parametrize(
    ("finding", "severity"),
    [
        (room("/", 50_000_000_000), None),
        (room("/", 5_000_000_000), "warning"),
        (room("/", 500_000_000), "error"),
        (answered("https://index.invalid", 200), None),
        (answered("https://index.invalid", 404), None),
        (answered("https://index.invalid", 405), None),
        (answered("https://index.invalid", 401), "error"),
        (answered("https://index.invalid", 503), "error"),
        (driver_finding({"driver": "535.1", "gpus": []}), "warning"),
        (driver_finding({"driver": "535.1", "cuda_maximum": "12.2", "gpus": [{"name": "T4"}]}), None),
    ],
)
def test_how_much_it_matters(finding, severity):
    assert finding.agrees is (severity is None)
    assert finding.agrees or finding.severity == severity
    assert finding.agrees or finding.todo


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"Date": "Sun, 22 Nov 2026 12:01:00 GMT"}, "within 2 minutes"),
        ({"Date": "Sun, 22 Nov 2026 11:00:00 GMT"}, "60 minutes ahead of"),
        ({"Date": "Sun, 22 Nov 2026 12:10:00 GMT"}, "10 minutes behind"),
        ({"Date": "Sun, 22 Nov 2026 11:00:00 GMT", "Age": "3600"}, "within 2 minutes"),
        ({}, None),
        ({"Date": "yesterday"}, None),
    ],
)
def test_the_clock_is_held_against_an_answer_s_date(headers, says):
    found = list(clock(headers, datetime(2026, 11, 22, 12, tzinfo=UTC), "https://index.invalid"))
    assert [says in it.says for it in found] == ([True] if says else [])
    assert all(it.agrees is ("within" in it.says) for it in found)


def test_logins_name_registries_and_no_secret():
    config = {"auths": {"example.com": {"auth": "dTpsZXRtZWlu"}}, "credsStore": "desktop"}
    found = list(logins(config, "config.json", ""))
    assert [it.agrees for it in found] == [False, True]
    assert "example.com" in found[1].says
    assert "dTps" not in str(found)


@pytest.mark.parametrize(
    ("content", "agrees", "says"),
    [
        ({"type": "authorized_user", "quota_project_id": "proj"}, True, "authorized_user of"),
        ({"kind": "odd"}, False, "cannot be used"),
        (None, False, "there are none"),
    ],
)
def test_google_credentials_are_read_and_not_used(tmp_path, content, agrees, says):
    folder = tmp_path / ".config/gcloud"
    folder.mkdir(parents=True)
    if content is not None:
        (folder / "application_default_credentials.json").write_text(json.dumps(content))
    (found,) = google_credentials({"HOME": str(tmp_path)}, tmp_path)
    assert found.agrees is agrees
    assert says in found.says


def test_a_machine_of_google_has_its_service_account(tmp_path):
    firmware = tmp_path / "sys/class/dmi/id"
    firmware.mkdir(parents=True)
    (firmware / "product_name").write_text("Google Compute Engine\n")
    (found,) = google_credentials({"HOME": str(tmp_path)}, tmp_path)
    assert "service account" in found.says


def test_what_checks_import_is_loaded_before_they_start(tmp_path, monkeypatch):
    """Side by side, a package and its part may wait for each other, and each gets half of the other."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slow_part.py").write_text("import threading\nloaded_by = threading.current_thread().name\n")
    (tmp_path / "broken_part.py").write_text("1 / 0\n")

    def look():
        return [ok("part", sys.modules["slow_part"].loaded_by)]

    (found,) = checked([Check(about="part", find=look, needs=("absent_part", "broken_part", "slow_part"))])
    assert (found.agrees, found.says) == (True, threading.current_thread().name)


def test_checks_that_import_parts_of_one_package_name_all_of_them():
    needs = {it.about: it.needs for it in machine_checks(offline=True)}
    assert needs["engine"] == needs["buildx"] == ("envbuild.engine.client", "envbuild.engine.buildkit")


def test_checks_run_at_once_and_none_waits_for_one_that_hangs():
    both, hangs = threading.Barrier(2, timeout=30), threading.Event()

    def met(name):
        both.wait()
        return [ok(name, "met")]

    def broken():
        raise ValueError("odd")

    def refused():
        raise RegistryError("no", todo="do so")

    checks = [
        Check(about="one", find=lambda: met("one")),
        Check(about="hangs", find=lambda: [ok("hangs", str(hangs.wait(60)))], seconds=0.2, severity="warning"),
        Check(about="two", find=lambda: met("two")),
        Check(about="broken", find=broken),
        Check(about="refused", find=refused),
    ]
    found = checked(checks)
    hangs.set()
    assert [(it.about, it.agrees) for it in found] == [
        ("one", True),
        ("hangs", False),
        ("two", True),
        ("broken", False),
        ("refused", False),
    ]
    assert (found[1].severity, found[1].says) == ("warning", "no answer within 0 s")
    assert (found[3].severity, "ValueError: odd" in found[3].says) == ("warning", True)
    assert (found[4].severity, found[4].todo) == ("error", "do so")


def test_a_stamped_image_that_a_policy_could_delete_is_warned_about(tmp_path, api):
    model = stamped(tmp_path, f"{HOST}/proj/images/app@{DIGEST}")
    done = doctor(tmp_path, "--json", str(model), ENVBUILD_ARTIFACT_REGISTRY_ENDPOINT=api.url)
    assert done.returncode == 0, done.stderr
    found = findings(done)
    assert found["train cpu linux/amd64"]["agrees"]
    warned = found["train cpu linux/amd64 cleanup"]
    assert (warned["severity"], warned["rule"]) == ("warning", "cleanup")
    assert "cleanup policy old" in warned["says"]
    assert "set-cleanup-policies images --project=proj --location=europe-west1" in warned["do"]
    assert "index" not in found


def test_a_stamped_image_that_a_policy_keeps_is_fine(tmp_path, api):
    api.repositories[NAME]["cleanupPolicies"]["ours"] = KEEP
    api.push(NAME, "app", str(DIGEST), "stamped-abababababab")
    model = stamped(tmp_path, f"{HOST}/proj/images/app@{DIGEST}")
    done = doctor(tmp_path, str(model), ENVBUILD_ARTIFACT_REGISTRY_ENDPOINT=api.url)
    assert done.returncode == 0
    assert [line[:2] for line in done.stdout.splitlines()] == ["ok"] * 3
    assert "it is kept by ours" in done.stdout or "no cleanup policy deletes it" in done.stdout


def test_being_one_of_the_newest_is_no_safe_place(tmp_path, api):
    recent = {"id": "recent", "action": 2, "mostRecentVersions": {"keepCount": 5}}
    api.repositories[NAME]["cleanupPolicies"]["recent"] = recent
    done = doctor(tmp_path, "--json", f"{HOST}/proj/images/app:v7", ENVBUILD_ARTIFACT_REGISTRY_ENDPOINT=api.url)
    assert findings(done)[f"{HOST}/proj/images/app:v7 cleanup"]["severity"] == "warning"


def test_a_dry_run_of_cleanup_is_only_noted(tmp_path, api):
    api.repositories[NAME]["cleanupPolicyDryRun"] = True
    name = f"{HOST}/proj/images/app@{DIGEST}"
    done = doctor(tmp_path, "--json", name, ENVBUILD_ARTIFACT_REGISTRY_ENDPOINT=api.url)
    noted = findings(done)[f"{name} cleanup"]
    assert (noted["severity"], noted["says"].partition(";")[0]) == ("note", "cleanup is a dry run")


def test_an_image_that_is_gone_ends_with_16_and_the_others_are_still_looked_at(tmp_path, api):
    model = stamped(tmp_path, f"{HOST}/proj/images/app@{DIGEST}", f"{HOST}/proj/images/app@{OTHER}")
    done = doctor(tmp_path, "--json", str(model), ENVBUILD_ARTIFACT_REGISTRY_ENDPOINT=api.url)
    assert done.returncode == 16
    found = findings(done)
    assert found["train cpu linux/amd64"]["agrees"]
    gone = found["train gpu linux/amd64"]
    assert (gone["severity"], gone["rule"], gone["wanted"]) == ("error", "digest-gone", str(OTHER))


def test_an_image_of_another_registry_is_looked_for_there(tmp_path):
    with FakeRegistry() as registry:
        registry.put_manifest("team/app", "v7", b"{}", "application/vnd.oci.image.manifest.v1+json")
        there = doctor(tmp_path, f"{registry.host}/team/app:v7")
        gone = doctor(tmp_path, f"{registry.host}/team/app:v8")
    assert (there.returncode, gone.returncode) == (0, 16)
    assert "is there" in there.stdout
    assert "is not there" in gone.stdout


def test_a_registry_that_wants_a_login_says_which_ones_there_are(tmp_path):
    with FakeRegistry(login="bearer") as registry:
        done = doctor(tmp_path, "--json", f"{registry.host}/team/app:v7")
    assert done.returncode == 16
    found = findings(done)
    assert "401" in found[f"{registry.host}/team/app:v7"]["says"]
    assert "no credentials" in found[f"login {registry.host}"]["says"]


def test_an_image_that_was_never_pushed_is_noted(tmp_path):
    done = doctor(tmp_path, "--json", str(stamped(tmp_path, None)))
    assert done.returncode == 0
    assert findings(done)["train cpu linux/amd64"]["severity"] == "note"


def test_a_model_without_a_stamp_ends_with_16(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"graph")
    done = doctor(tmp_path, str(tmp_path))
    assert done.returncode == 16
    assert "no stamp" in done.stdout


@pytest.mark.parametrize("replaced", [True, False])
def test_a_model_that_was_replaced_after_it_was_stamped_is_an_error(tmp_path, monkeypatch, replaced):
    with FakeGcs() as gcs, FakeRegistry() as registry:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
        digest = Digest.parse(
            registry.put_manifest("team/app", "v7", b"{}", "application/vnd.oci.image.manifest.v1+json")
        )
        gcs.put("models", "churn/saved_model.pb", b"graph")
        entry = StampEntry(
            role="train",
            variant="cpu",
            platform="linux/amd64",
            reference=f"{registry.host}/team/app@{digest}",
            digest=digest,
            environment=Digest("ef" * 32),
        )
        stamp("gs://models/churn", entry, manifest=b"{}", lock=b"lock", now=datetime.now(UTC))
        if replaced:
            kept = gcs.metadata("models", "churn/saved_model.pb")
            gcs.put("models", "churn/saved_model.pb", b"another graph", metadata=kept)
        done = doctor(tmp_path, "--json", "gs://models/churn")
    found = findings(done)
    said = found["gs://models/churn"]
    assert (done.returncode, said["agrees"]) == ((16, False) if replaced else (0, True)), done.stderr
    assert (said["rule"], said["severity"]) == ("artifact-stamp", "error" if replaced else None)
    assert (REPLACED in said["says"]) is replaced
    assert found["train cpu linux/amd64"]["agrees"], "its images are looked for all the same"


@pytest.mark.parametrize(
    "arguments",
    [
        ("app",),
        ("team/app:7",),
        ("--offline", "example.com/app:7"),
        ("",),
        ("gs://m/x",),
        ("gs://models",),
        ("https://example.com/x",),
        ("nl\nx",),
        ("a" * 300,),
        (f"/{'a' * 300}",),
        ("./nothing/here",),
        ("/nothing/here",),
    ],
)
def test_what_cannot_be_meant_ends_with_2(tmp_path, arguments):
    done = doctor(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(
    "target",
    [
        "https://user:hunter2@h/x",
        "user:hunter2@127.0.0.1:9/x/y:z",
        "user:hunter2@example.com/app@sha256:" + "ab" * 32,
        "gs://user:hunter2@models/churn",
        "file://user:hunter2@h/x",
        "GS://user:hunter2@models/churn",
    ],
)
def test_a_login_in_a_target_is_refused_and_not_shown(tmp_path, target):
    done = doctor(tmp_path, target)
    assert (done.returncode, done.stdout) == (2, "")
    assert "docker login" in done.stderr
    assert "hunter2" not in done.stderr


def test_an_at_that_is_no_login_is_part_of_a_name(tmp_path):
    assert target_of("gs://models/churn@7").image is None
    (tmp_path / "churn@7").mkdir()
    assert target_of(str(tmp_path / "churn@7")).image is None
    assert target_of(f"file://{tmp_path}/churn@7").image is None


def test_cloud_storage_s_address_is_shown_without_its_password(monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://user:hunter2@127.0.0.1:{closed_port()}")
    (down,) = storage()
    assert "127.0.0.1" in down.says
    assert "hunter2" not in str(down.to_dict())
    with FakeGcs() as gcs:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url.replace("://", "://user:hunter2@"))
        (said,) = storage()
    assert gcs.url in said.says
    assert "hunter2" not in str(said.to_dict())


@pytest.mark.parametrize(
    "odd",
    [
        {"action": 7, "condition": {"tagState": 3}},
        {"action": 1, "condition": {"olderThan": "30d"}},
        {"action": 1, "condition": {"olderThan": "99999999999999s"}},
    ],
)
def test_a_policy_that_is_not_understood_is_a_warning_and_the_image_is_there(tmp_path, api, odd):
    api.repositories[NAME]["cleanupPolicies"] = {"odd": odd, "ours": KEEP}
    name = f"{HOST}/proj/images/app@{DIGEST}"
    done = doctor(tmp_path, "--json", name, ENVBUILD_ARTIFACT_REGISTRY_ENDPOINT=api.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert findings(done)[name]["agrees"]
    warned = findings(done)[f"{name} cleanup"]
    assert (warned["rule"], warned["severity"]) == ("cleanup", "warning")
    assert "odd" in warned["says"]
    assert "Error" not in done.stdout


def test_models_and_images_are_told_apart(tmp_path):
    assert target_of("gs://models/churn/7").image is None
    assert target_of(str(tmp_path)).image is None
    assert target_of("127.0.0.1:5000/app:7").image == Reference("127.0.0.1:5000", "app", tag="7")
    with pytest.raises(UsageError):
        target_of("example.com/App:7")


def test_what_is_wrong_says_what_to_do():
    found = wrong("disk", "it is full", "free some")
    assert str(found) == "error    disk: it is full"
