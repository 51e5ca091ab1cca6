"""What is attached to a pushed image: that it is what the specifications say, is there once, and tells no secret."""

import base64
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from jsonschema import Draft202012Validator
from referencing import Registry as Schemas
from referencing import Resource

from envbuild.attest.attach import AttestOptions, attest, check_key, sign
from envbuild.attest.bill import bill_of_materials
from envbuild.attest.parts import Parts
from envbuild.attest.statement import BUILD, LOCAL, PROVENANCE, builder_of, provenance, public_name, statement
from envbuild.errors import RegistryError, UsageError
from envbuild.oci.digest import Digest
from tests.fakes.registry import FakeRegistry
from tests.reporting import Recorder
from tests.unit.attesting import STARTED, facts_of, key_pair, lock_of, wheel

SCHEMAS = Path(__file__).parents[1] / "data/schemas"
TRACED = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "acme/ml",
    "GITHUB_WORKFLOW_REF": "acme/ml/.github/workflows/serve.yml@refs/heads/main",
    "GITHUB_RUN_ID": "77",
    "GITHUB_RUN_ATTEMPT": "2",
}
GITLAB = {"GITLAB_CI": "true", "CI_PROJECT_URL": "https://gitlab.example.com/a/b", "CI_RUNNER_ID": "5"}
CLOUD = {"BUILD_ID": "b-1", "PROJECT_ID": "acme", "LOCATION": "europe-west4"}


@pytest.fixture
def fake():
    with FakeRegistry(referrers=True) as fake:
        yield fake


def check(name: str, value: object) -> None:
    """Raise ValidationError unless the value is what tests/data/schemas says."""
    files = {it.name: json.loads(it.read_bytes()) for it in SCHEMAS.iterdir()}
    known = Schemas().with_resources((one, Resource.from_contents(it)) for one, it in files.items())
    Draft202012Validator(files[name], registry=known).validate(value)


def attached(fake: FakeRegistry, kind: str = "") -> list[bytes]:
    """The content of all artifacts whose type ends so."""
    stored = fake.repositories["team/app"]
    manifests = [json.loads(data) for _, data in stored.manifests.values()]
    ours = [it for it in manifests if "subject" in it and it["artifactType"].endswith(kind)]
    return [stored.blobs[it["layers"][0]["digest"]] for it in ours]


def test_the_bill_is_valid_and_names_everything(fake):
    facts = facts_of(fake.host)
    bill = bill_of_materials(facts)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill.decode()) is None
    value = json.loads(bill)
    found = {it["bom-ref"]: it for it in value["components"]}
    assert found["pkg:pypi/numpy@1.26.4"]["hashes"] == [
        {"alg": "SHA-256", "content": wheel("numpy", "1.26.4").sha256.hex}
    ]
    assert found["pkg:deb/debian/zlib1g@1:1.2.13.dfsg-1?arch=amd64"]["version"] == "1:1.2.13.dfsg-1"
    assert (found["python"]["version"], found["base"]["version"]) == ("3.11.2", str(facts.base_digest))
    assert (found["model"]["type"], found["model"]["name"]) == ("machine-learning-model", "gs://bucket/models/churn")
    assert [it["name"] for it in found["model"]["components"]] == ["saved_model.pb"]
    [edges] = [it["dependsOn"] for it in value["dependencies"] if it["ref"] == "image"]
    assert set(edges) == set(found)


def test_an_image_has_one_bill_whenever_it_is_made(fake):
    facts = facts_of(fake.host)
    later = replace(facts, finished=STARTED + timedelta(days=1), parameters=())
    assert bill_of_materials(later) == bill_of_materials(facts)


def test_bills_that_say_something_else_have_another_number(fake):
    facts = facts_of(fake.host)
    other = replace(facts, reference=facts.reference.at(Digest.of(b"other")))
    elsewhere = replace(facts, reference=replace(facts.reference, repository="team/moved"))
    named = replace(facts, model="gs://bucket/models/churn-2")
    serials = {json.loads(bill_of_materials(it))["serialNumber"] for it in (facts, other, elsewhere, named)}
    assert len(serials) == 4
    assert all(it.startswith("urn:uuid:") for it in serials)


def test_provenance_is_what_slsa_says_and_has_every_file_by_digest(fake):
    facts = facts_of(fake.host)
    predicate = provenance(facts, *builder_of(TRACED))
    check("slsa-provenance-v1.schema.json", predicate)
    check("in-toto-statement-v1.schema.json", json.loads(statement(Digest.of(b"x"), PROVENANCE, predicate, "name")))
    definition, details = predicate["buildDefinition"], predicate["runDetails"]
    named = {it["name"]: it["digest"]["sha256"] for it in definition["resolvedDependencies"]}
    wheels = {it.filename: it.sha256.hex for lock in facts.locks for it in lock.wheels}
    assert wheels.items() <= named.items()
    assert named["base"] == facts.base_digest.hex
    assert facts.parent
    assert facts.parent.digest
    assert named["training image"] == facts.parent.digest.hex
    assert (named["training manifest"], named["pylock.toml"]) == (facts.manifest.hex, facts.lock_digests[0].hex)
    assert named["zlib1g_1.2.13.dfsg-1_amd64.deb"] == Digest.of(b"zlib").hex
    assert definition["buildType"] == BUILD
    assert definition["externalParameters"]["options"] == {"builder": "assemble", "set cuda": "12.2"}
    assert details["metadata"]["startedOn"] == "2026-11-22T08:30:00Z"


@pytest.mark.parametrize(
    ("variables", "builder", "run"),
    [
        (TRACED, "github.com/acme/ml/.github/workflows/serve.yml@refs/heads/main", "acme/ml/actions/runs/77/attempts/2"),
        (GITLAB | {"CI_JOB_URL": "https://gitlab.example.com/a/b/-/jobs/9"}, "/a/b/-/runners/5", "/a/b/-/jobs/9"),
        (CLOUD, "cloudbuild.googleapis.com/GoogleHostedWorker", "/projects/acme/locations/europe-west4/builds/b-1"),
        ({}, LOCAL, ""),
        ({"GITHUB_ACTIONS": "true"}, LOCAL, ""),
    ],
)  # fmt: skip
def test_the_builder_is_the_ci_that_says_so(variables, builder, run):
    found, invocation = builder_of(variables)
    assert found.endswith(builder)
    assert invocation.endswith(run)


@pytest.mark.parametrize("listed", [True, False])
def test_each_push_attaches_what_is_missing_and_nothing_twice(tmp_path, listed):
    key, _ = key_pair(tmp_path)
    with FakeRegistry(referrers=listed) as fake:
        facts, said = facts_of(fake.host), Recorder()
        assert len(attest(facts, AttestOptions(), said)) == 2
        later = replace(facts, finished=STARTED + timedelta(days=1))
        assert attest(later, AttestOptions(), said) == ()
        assert len(attest(later, AttestOptions(key=str(key)), said)) == 6
        assert attest(later, AttestOptions(key=str(key)), said) == ()
        assert sign(facts.reference, AttestOptions(key=str(key)), said) == ()
        assert len(attest(later, AttestOptions(key=str(key_pair(tmp_path, "other")[0])), said)) == 6
        assert len(attached(fake)) == 8
    assert said.warnings == []


@pytest.mark.parametrize("key", [True, False])
def test_nothing_is_read_for_a_bill_that_is_there(fake, tmp_path, key):
    def refuse() -> Parts:
        raise AssertionError("wheels and base are read again")

    options = AttestOptions(key=str(key_pair(tmp_path)[0]) if key else None)
    facts = facts_of(fake.host)
    attest(facts, options, Recorder())
    assert attest(replace(facts, read_parts=refuse), options, Recorder()) == ()


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("gs://user@acme/train.csv", "gs://acme/train.csv"),
        ("abfss://one@acme.example/a", "abfss://one@acme.example/a"),
        ("abfss://me:hunter2@acme.example/a", "abfss://acme.example/a"),
        ("jdbc:postgresql://db/x?user=me&password=hunter2", "x"),
        ("jdbc:sqlserver://db;password=hunter2", "db"),
        ("s3://[x/y", "y"),
        ("/home/me/data/", "data"),
    ],
)
def test_a_public_name_tells_apart_and_tells_no_secret(uri, name):
    assert public_name(uri) == name


def test_an_index_is_signed_and_nothing_else_is_said_of_it(fake, tmp_path):
    key, _ = key_pair(tmp_path)
    reference = facts_of(fake.host).reference
    assert sign(reference, AttestOptions(), Recorder()) == ()
    assert len(sign(reference, AttestOptions(key=str(key), format="bundle"), Recorder())) == 1
    [bundle] = attached(fake)
    payload = json.loads(base64.b64decode(json.loads(bundle)["dsseEnvelope"]["payload"]))
    assert (payload["predicateType"], payload["predicate"]) == ("https://sigstore.dev/cosign/sign/v1", {})


def test_what_is_attached_is_what_the_schemas_say(fake, tmp_path):
    key, _ = key_pair(tmp_path)
    attest(facts_of(fake.host), AttestOptions(key=str(key)), Recorder())
    [bill], [built] = attached(fake, "cyclonedx+json"), attached(fake, "in-toto+json")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill.decode()) is None
    check("in-toto-statement-v1.schema.json", json.loads(built))
    bundles = [json.loads(it) for it in attached(fake, "bundle.v0.3+json")]
    for bundle in bundles:
        check("sigstore-bundle-v0.3.schema.json", bundle)
    payloads = [json.loads(base64.b64decode(it["dsseEnvelope"]["payload"])) for it in bundles]
    for payload in payloads:
        check("in-toto-statement-v1.schema.json", payload)
    assert {it["predicateType"] for it in payloads} == {
        "https://sigstore.dev/cosign/sign/v1",
        "https://slsa.dev/provenance/v1",
        "https://cyclonedx.org/bom",
    }


def test_nothing_is_attached_where_nothing_is_wanted(fake):
    facts = facts_of(fake.host)
    before = len(fake.requests)
    assert attest(facts, AttestOptions(statements=False), Recorder()) == ()
    assert len(fake.requests) == before


def test_a_registry_that_refuses_is_told_of_and_is_an_error_only_with_a_key(tmp_path):
    key, _ = key_pair(tmp_path)
    with FakeRegistry() as fake:
        facts, said = facts_of(fake.host), Recorder()
        fake.fail("PUT", "manifests/", status=400, times=9)
        before = dict(fake.tags)
        assert attest(facts, AttestOptions(), said) == ()
        assert "no bill of materials and no provenance" in said.warnings[0]
        with pytest.raises(RegistryError):
            attest(facts, AttestOptions(key=str(key)), said)
        assert fake.tags == before


def test_no_statement_tells_a_secret_or_where_things_lie_here(fake, tmp_path, monkeypatch):
    secrets = ("hunter2", "s3cret", "tok3n", "letmein", "/home/me", "/srv/")
    for name in ("GITHUB_TOKEN", "CI_JOB_TOKEN", "UV_INDEX_PASSWORD", "AWS_SECRET_ACCESS_KEY", "HOME"):
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("ENVBUILD_SIGN_PASSWORD", "letmein")
    key, _ = key_pair(tmp_path, password="letmein")
    own = wheel("own", "1.0", "https://user:s3cret@index.example.com/own.whl?sig=tok3n")
    facts = facts_of(
        fake.host,
        locks=(lock_of(own, wheel("local", "2.0", "file:///home/me/wheels/local.whl")),),
        base_name="/srv/bases/mine",
        model="/home/me/models/churn",
        parameters=(("extra", "a @ https://user:s3cret@h.example/a.whl?token=tok3n, b @ file:///home/me/b.whl"),),
    )
    attest(facts, AttestOptions(key=str(key)), Recorder())
    monkeypatch.undo()
    told = b"".join(attached(fake)) + b"".join(data for _, data in fake.repositories["team/app"].manifests.values())
    told += b"".join(base64.b64decode(json.loads(it)["dsseEnvelope"]["payload"]) for it in attached(fake, "v0.3+json"))
    assert [it for it in (*secrets, str(tmp_path), "BEGIN") if it.encode() in told] == []
    assert b'"churn"' in told
    assert b"own-1.0-py3-none-any.whl" in told


def test_a_key_that_cannot_sign_is_refused_before_anything_else(tmp_path):
    check_key(AttestOptions(key=str(key_pair(tmp_path)[0])))
    with pytest.raises(UsageError, match="the key cannot be read"):
        check_key(AttestOptions(key=str(tmp_path / "absent.pem")))
