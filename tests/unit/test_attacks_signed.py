"""What somebody who may write to the model's folder and to the repository can get past the commands that take a key.

None of these tests can hold on a commit where stamps are not signed. `test_attacks_stamp.py` has the forgeries of the
stamp itself.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import envbuild.serve.build
from envbuild.attest.attach import AttestOptions, sign
from envbuild.attest.bundle import record_signer
from envbuild.capture.model import model_facts
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference
from envbuild.registry.push import push
from envbuild.serve.contents import embedded
from envbuild.stamp.history import read_stamp
from envbuild.stamp.record import StampEntry, lock_name, manifest_name
from envbuild.stamp.stamping import stamp
from tests.reporting import Recorder
from tests.unit.attesting import ANOTHER_KEY, NO_STAMP, NOT_SIGNED, key_pair
from tests.unit.test_deploy_check import PATCH, SERVER, on_top, pulled, pushed, site, wrong  # noqa: F401 - fixtures
from tests.unit.test_stamp import NOW, gcs  # noqa: F401 - a fixture
from tests.unit.test_verify_targets import MOVED, built, manifest

NOT_NAMED = "the signed stamp does not name sha256:"
NO_SIGNATURE = "signed: it has no signature"


class Signed:
    """A model whose training image and stamp a key has signed."""

    def __init__(self, site: Any) -> None:  # noqa: F811
        self.site, self.model = site, site.folder / "model"
        self.private, self.public = key_pair(site.folder)
        shutil.rmtree(self.model / "envbuild")
        site.train = built(site, "manifest.json", "--stamp", "model", "--sign", str(self.private))["image"]

    def stamped(self, reference: str, role: str = "serve", *, signed: bool = True) -> str:
        digest = Reference.parse(reference).digest
        assert digest
        entry = StampEntry(
            role=role, variant="cpu", platform="linux/amd64", reference=reference, digest=digest,
            environment=Digest("e" * 64),
        )  # fmt: skip
        manifest = (self.site.folder / "manifest.json").read_bytes()
        lock = (self.site.folder / "out/context/pylock.toml").read_bytes()
        signer = record_signer(str(self.private)) if signed else None
        return stamp(str(self.model), entry, manifest=manifest, lock=lock, now=NOW, signer=signer).record

    def sign(self, reference: str) -> str:
        sign(Reference.parse(reference), AttestOptions(key=str(self.private)), Recorder())
        return reference

    def serving(self, name: str, *trees: Any, signed: bool = True) -> str:
        reference = pushed(self.site, on_top(pulled(self.site), SERVER, *trees), name)
        return self.sign(reference) if signed else reference

    def check(self, image: str, *more: Any) -> Any:
        given = more if "--policy" in more else ("--signed", self.public, *more)
        return self.site("deploy-check", "model", image, *given)

    @contextmanager
    def attacked(self) -> Iterator[None]:
        """The model's folder is put back afterwards."""
        kept = self.site.folder / "kept"
        shutil.copytree(self.model, kept, symlinks=True)
        try:
            yield
        finally:
            shutil.rmtree(self.model)
            kept.rename(self.model)


@pytest.fixture
def place(site):  # noqa: F811
    return Signed(site)


def refused(done: Any, says: str, code: int = 16) -> None:
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert says in " ".join(done.stderr.split()), done.stderr


def test_an_image_that_the_key_did_not_vouch_for_is_not_printed(place):
    good = place.serving("serve:1")
    place.stamped(good)
    done = place.check(f"{place.site.host}/serve:1", "--minimum-record", "2")
    assert (done.returncode, done.stdout) == (0, f"{good}\n"), done.stderr
    assert "in record 2, which is signed by the key" in done.stderr

    # An image that shares all of training's layers, which is enough without a key.
    mine = place.serving("mine:1", {"app/more.py": b""}, signed=False)
    assert place.site("deploy-check", "model", mine).returncode == 0
    refused(place.check(mine), NOT_NAMED)
    # The key signed it, but for another model or for none.
    refused(place.check(place.sign(mine)), NOT_NAMED)
    # A tag that is moved there is refused, even though the stamped image still is in the registry.
    push(on_top(pulled(place.site), SERVER, PATCH), Reference.parse(f"{place.site.host}/serve:1"))
    refused(place.check(f"{place.site.host}/serve:1"), NOT_NAMED)
    # Policies that let everything else pass do not let this pass.
    rules = ["deploy-image", "tag-moved", "shared-layers", "shared-package", "artifact-stamp", "variable-value"]
    lax = place.site.folder / "lax.toml"
    lax.write_text("\n".join(("[rules]", *(f'{it} = "ignore"' for it in rules))))
    refused(place.site("deploy-check", "model", mine, "--signed", place.public, "--policy", lax), NOT_NAMED)

    # Nor does a configuration that lies where the command runs.
    (place.site.folder / "p.toml").write_text('[rules]\nsigned = "ignore"\n[[accept]]\nrule = "signed"\nreason = "x"\n')
    (place.site.folder / "envbuild.toml").write_text('policy = "p.toml"\n')
    refused(place.check(mine), NOT_NAMED)
    (place.site.folder / "envbuild.toml").unlink()

    with place.attacked():
        place.stamped(mine, signed=False)
        assert place.site("deploy-check", "model", mine).returncode == 0
        refused(place.check(mine), NOT_SIGNED)
        refused(place.site("deploy-check", "model", mine, "--signed", place.public, "--policy", lax), NOT_SIGNED)
    with place.attacked():
        place.stamped(mine, signed=False)
        done = place.check(mine, "--json")
        said = json.loads(done.stdout)
        assert (done.returncode, said["image"], said["agrees"], said["findings"]) == (16, None, False, [])
        assert NOT_SIGNED in said["failed"]
    with place.attacked():
        (place.model / "envbuild/pointer.json").unlink()
        refused(place.site("deploy-check", "model", mine, "--signed", place.public, "--policy", lax), NO_STAMP)
    with place.attacked():
        place.stamped(place.sign(mine), "debug")
        refused(place.check(mine), NOT_NAMED)
    with place.attacked():
        record = place.stamped(mine)
        refused(place.check(good), NOT_NAMED)  # another took its place
        pointer = (place.site.folder / "kept/envbuild/pointer.json").read_bytes()
        (place.model / "envbuild/pointer.json").write_bytes(pointer)
        refused(place.check(good), "and record 3 is signed too")
        (place.model / record).unlink()
        refused(place.check(good, "--minimum-record", "3"), "--minimum-record requires 3 or later")


def test_an_image_without_the_keys_signature_is_not_printed(place):
    bare = place.serving("bare:1", signed=False)
    place.stamped(bare)
    refused(place.check(bare), NO_SIGNATURE)
    _, other = key_pair(place.site.folder, "other")
    refused(place.site("deploy-check", "model", place.sign(bare), "--signed", other), ANOTHER_KEY)
    copy = pushed(place.site, on_top(pulled(place.site), SERVER), "copy:1")
    refused(place.check(copy), NO_SIGNATURE)


@pytest.mark.parametrize("copy", [manifest_name, lock_name])
def test_a_copy_beside_the_record_that_was_replaced_is_refused(place, copy):
    found = read_stamp(str(place.model))
    assert found
    (place.model / copy(found.images[0])).write_bytes(b"{}")
    refused(place.check(place.site.train), "its content does not match the record")
    done = place.site("verify", "model", "--signed", place.public, "--json")
    assert (done.returncode, ("artifact-copies", "error") in wrong(done)) == (16, True)
    if copy is manifest_name:
        serve = (
            "from-manifest",
            "model",
            "--role",
            "serve",
            "--server",
            "fastapi",
            "--signed",
            place.public,
            "--dry-run",
        )
        refused(place.site(*serve), "the copy of the run's manifest", 15)


def test_every_command_with_a_key_reads_the_signed_stamp_and_no_other(place):
    venv = ("--venv", place.site.folder / "venv", "--dry-run")
    serve = ("--role", "serve", "--server", "fastapi", "--dry-run")
    calls: list[tuple[Any, ...]] = [
        ("deploy-check", "model", place.site.train),
        ("verify", "model"),
        ("inspect", "model"),
        ("local", "model", *venv),
        ("from-manifest", "model", *serve),
    ]
    for command, target, *more in calls:
        done = place.site(command, target, *more, "--signed", place.public)
        assert done.returncode == 0, (command, done.stderr)
        refused(place.site(command, target, *more, "--signed", place.public, "--minimum-record", "9"), "9 or later")
    for signature in (place.model / "envbuild").glob("*.sigstore.json"):
        signature.unlink()
    for command, target, *more in calls:
        assert place.site(command, target, *more).returncode == 0, command  # as before, without a key
        refused(place.site(command, target, *more, "--signed", place.public), NOT_SIGNED)
    # Whoever signs what serves vouches for what the stamp says, so that --sign asks for the same.
    push_to = ("--push", f"{place.site.host}/serve:1", "--sign", place.private)
    refused(place.site("from-manifest", "model", *serve, *push_to), NOT_SIGNED)
    for words in (
        ("local", "manifest.json", *venv, "--signed", place.public),
        ("from-manifest", "manifest.json", "--signed", place.public),
        ("from-manifest", "manifest.json", *serve, "--signed", place.public),
        ("from-manifest", "model", *serve, "--minimum-record", "1"),
        ("from-manifest", "manifest.json", "--stamp", "model", "--minimum-record", "1"),
        ("from-manifest", "manifest.json", "--sign", place.private, "--minimum-record", "1"),
        ("verify", "manifest.json", "host", "--signed", place.public),
    ):
        refused(place.site(*words), "--", 2)


def test_training_ends_before_it_builds_where_newer_records_were_removed(place):
    words = (
        "from-manifest",
        "manifest.json",
        "--push",
        f"{place.site.host}/late:1",
        "--stamp",
        "model",
        "--out",
        "late",
    )
    done = place.site(*words, "--sign", place.private, "--minimum-record", "2")
    refused(done, "the model's newest record by this key is 1, and --minimum-record requires 2 or later", 15)
    assert not (place.site.folder / "late").exists()


def test_a_policy_requires_keys_and_lists_registries(place):
    good = place.serving("ml/serve:1")
    place.stamped(good)
    folder = place.site.folder / "ci"
    folder.mkdir()
    shutil.copy(place.public, folder / "cosign.pub")
    key_pair(folder, "other")
    policy = folder / "policy.toml"

    def asked(image: str, registry: str, keys: str = '["other.pub", "cosign.pub"]') -> Any:
        policy.write_text(f'registries = ["{registry}"]\n[signed]\nkeys = {keys}\n')
        return place.check(image, "--policy", policy)

    host = place.site.host
    done = asked(good, f"{host}/ml")
    assert (done.returncode, done.stdout) == (0, f"{good}\n"), done.stderr
    assert asked(good, f"{host}/ml/serve").returncode == 0
    refused(asked(good, f"{host}/m"), f"registry: {host}/ml/serve is not below {host}/m")
    refused(asked(good, f"{host}/ml", '["other.pub"]'), ANOTHER_KEY)
    other = place.serving("ml-evil/serve:1", {"app/more.py": b""})
    refused(asked(other, f"{host}/ml"), f"{host}/ml-evil/serve is not below {host}/ml")
    policy.write_text("registries = []\n")
    refused(place.check(good, "--policy", policy), "registries", 2)
    policy.write_text('[signed]\nkeys = ["cosign.pub"]\n')
    assert place.site("verify", "model", "--policy", policy).returncode == 0
    place.stamped(other, signed=False)
    refused(place.site("verify", "model", "--policy", policy), NOT_SIGNED)
    refused(place.check(other, "--policy", policy), NOT_SIGNED)


def test_a_configuration_takes_no_key_from_a_policy_and_leaves_no_check_out(place, monkeypatch):
    """A key of a configuration beside the policy of the command line, a configuration in the model, an empty key."""
    good, folder = place.serving("serve:1"), place.site.folder
    place.stamped(good)
    _, other = key_pair(folder, "other")
    policy = folder / "policy.toml"
    policy.write_text(f'[signed]\nkeys = ["{place.public}"]\n')
    configuration = folder / "envbuild.toml"
    configuration.write_text(f'[deploy-check]\nsigned = "{other}"\n[verify]\nsigned = "{other}"\n')
    for command in (("deploy-check", "model", good), ("verify", "model")):
        refused(place.site(*command, "--policy", policy), "is none of the policy's keys", 2)
    shutil.copy(place.public, folder / "same.pem")
    configuration.write_text('[deploy-check]\nsigned = "same.pem"\n')
    assert place.check(good, "--policy", policy).stdout == f"{good}\n"
    configuration.unlink()

    (place.model / "policy.toml").write_text('[rules]\nartifact-file = "ignore"\n')
    (place.model / "envbuild.toml").write_text('[deploy-check]\npolicy = "policy.toml"\n')
    monkeypatch.chdir(place.model)
    for model in (".", place.model, place.model.as_uri(), "saved_model.pb"):
        done = place.site("deploy-check", model, good, "--signed", place.public)
        refused(done, "anyone who writes the model decides", 2)
    monkeypatch.setenv("ENVBUILD_CONFIG", "")
    assert place.site("deploy-check", ".", good, "--signed", place.public).stdout == f"{good}\n"

    monkeypatch.setenv("ENVBUILD_DEPLOY_CHECK_SIGNED", "")
    refused(place.site("deploy-check", ".", good), "ENVBUILD_DEPLOY_CHECK_SIGNED is empty", 2)


def test_what_serves_an_environment_that_training_replaced_meanwhile_is_not_stamped(place, monkeypatch):
    """Or record 2 is hidden while serving reads the stamp, and put back when its image is pushed."""
    app = place.site.folder / "app"
    app.mkdir()
    (app / "main.py").write_text("")
    words = (
        "from-manifest",
        "model",
        "--role",
        "serve",
        "--gate",
        "off",
        "--app",
        "app",
        "--cmd",
        "python /app/main.py",
    )
    more = ("--no-bytecode", "--push", f"{place.site.host}/serve:1", "--sign", place.private)
    usual = push

    def late(*given: Any, **more: Any) -> Any:
        monkeypatch.setattr(envbuild.serve.build, "push", usual)
        place.stamped(place.serving("train:2"), "train")
        return usual(*given, **more)

    monkeypatch.setattr(envbuild.serve.build, "push", late)
    refused(
        place.site(*words, *more), "training stamped a new environment (record 2) while the serving image was built", 15
    )
    found = read_stamp(str(place.model))
    assert found
    assert (found.counter, [it.role for it in found.images]) == (2, ["train"])


@pytest.mark.parametrize("when", ["push", "embed"])
@pytest.mark.parametrize("data", [b"weights", b"WEIGHTS"])
def test_ci_signs_no_other_files_than_those_that_training_signed(site, gcs, monkeypatch, when, data):  # noqa: F811
    """In a bucket, where a manifest of local files knows sizes only, and CRC32C can be made to fit any content."""
    uri, files = "gs://models/runs/1", {"saved_model.pb": b"graph", "weights.bin": b"weights"}
    gcs.create_bucket("models")
    for name, content in files.items():
        gcs.put("models", f"runs/1/{name}", content)
        (site.folder / "model" / name).write_bytes(content)
    kept = data == b"weights"  # the same checksum, as of a collision
    manifest(site, "manifest.json", model=model_facts(uri if kept else str(site.folder / "model")))
    private, public = key_pair(site.folder)
    image = built(site, "manifest.json", "--stamp", uri, "--sign", str(private))["image"]
    assert site("deploy-check", uri, image, "--signed", public).returncode == 0
    (site.folder / "app").mkdir()
    (site.folder / "app/main.py").write_text("")
    words = ("from-manifest", uri, "--role", "serve", "--gate", "off", "--app", "app", "--cmd", "python /app/main.py")
    more = ("--no-bytecode", "--push", f"{site.host}/serve:1", "--sign", private)
    usual: Any = {"push": push, "embed": embedded}[when]

    def late(*given: Any, **more: Any) -> Any:
        gcs.put("models", "runs/1/weights.bin", data)
        return usual(*given, **more)

    monkeypatch.setattr(envbuild.serve.build, usual.__name__, late)
    done = site(*words, *more, *(["--embed-model"] if when == "embed" else []))
    says = "weights.bin is written again" if kept else "weights.bin is not what the run saved"
    refused(done, says, 16 if when == "embed" else 15)
    # Whoever trains again has a manifest of its own.
    newer = manifest(site, "newer.json", model=model_facts(uri))
    image = built(site, newer, "--stamp", uri, "--sign", str(private))["image"]
    assert site("deploy-check", uri, image, "--signed", public).returncode == 0


def test_objects_that_were_written_anew_since_the_run_are_not_signed(site, gcs):  # noqa: F811
    gcs.create_bucket("models")
    gcs.put("models", "runs/1/saved_model.pb", b"graph")
    manifest(site, "manifest.json", model=model_facts("gs://models/runs/1"))
    gcs.put("models", "runs/1/saved_model.pb", b"graph")
    private, _ = key_pair(site.folder)
    words = ("from-manifest", "manifest.json", "--push", f"{site.host}/late:1", "--stamp", "gs://models/runs/1")
    refused(site(*words, "--sign", private), "saved_model.pb is written again", 15)
    built(site, "manifest.json", "--stamp", "gs://models/runs/1")


def test_files_of_another_tool_do_not_make_a_manifest_of_a_stamped_model(place):
    """Else --sign would sign an image of the pins that somebody put into the model's folder."""
    pins = {"MLmodel": "flavors: {}\n", "requirements.txt": "tool==2.0\n", "python_env.yaml": "python: 3.11.7\n"}
    serve = ("from-manifest", "model", "--role", "serve", "--server", "fastapi", "--dry-run")
    sign = ("--sign", place.private, "--push", f"{place.site.host}/serve:1")
    with place.attacked():
        for name, text in {**pins, "oci-layout": "{}", "Dockerfile": "", "pylock.toml": ""}.items():
            (place.model / name).write_text(text)
        refused(place.site(*serve, *sign, "--minimum-record", "9"), "--minimum-record requires 9 or later")
        assert place.check(place.site.train).returncode == 0
        done = place.site("from-manifest", "model", "--dry-run")  # as before, for training
        assert "model/MLmodel is read as mlflow" in done.stderr
        shutil.rmtree(place.model / "envbuild")
        says = "MODEL is of the kind image, as it has oci-layout"
        refused(place.check(place.site.train), says, 2)
        refused(place.site(*serve), "an image cannot be served: it has oci-layout", 2)
        (place.model / "oci-layout").unlink()
        (place.model / "Dockerfile").unlink()
        refused(place.site(*serve, *sign, "--minimum-record", "1"), "what is given is read as a manifest", 2)


def test_a_key_is_replaced_with_numbers_that_go_on(place):
    old, (private, public) = place.site.train, key_pair(place.site.folder, "new")
    train = ("from-manifest", "manifest.json", "--base", f"{place.site.host}/up/base:1", "--stamp", "model")
    more = ("--push", f"{place.site.host}/env", "--out", "new", "--sign", private)
    done = place.site(*train, *more, "--signed", place.public, "--minimum-record", "1")
    assert done.returncode == 0, done.stderr
    assert "record 2 of the model, signed" in done.stderr
    policy = place.site.folder / "policy.toml"
    policy.write_text(f'[signed]\nkeys = ["{public}", "{place.public}"]\n')
    assert place.check(old, "--policy", policy, "--minimum-record", "2").returncode == 0


def test_what_serves_the_environment_before_is_not_carried_into_the_record_of_a_new_one(place):
    """Nobody attacks: training's image is another one, and the file that bears the stamp is the same."""
    good = place.serving("serve:1")
    place.stamped(good)
    place.stamped(place.site.train, "train")
    assert place.check(good).stdout == f"{good}\n"
    newer = manifest(place.site, "moved.json", *MOVED)
    found = built(place.site, newer, "--stamp", "model", "--sign", str(place.private))["image"]
    refused(place.check(good, "--minimum-record", "3"), NOT_NAMED)
    assert place.check(found).stdout == f"{found}\n"
