"""No secret is printed by `envbuild diff`, whoever wrote the manifests and images, and what differs is told still."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.cli.commands import run
from envbuild.diff.facts import without_secrets
from envbuild.oci.layout import write_layout
from tests.fakes.trees import image_of_layers
from tests.unit.comparing import file, layer
from tests.unit.test_diff_facts import changed

ONE, TWO = "canaryOne", "canaryTwo"


@pytest.fixture
def diff(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def asked(a, b):
        """Both forms, of which none may tell a canary."""
        capsys.readouterr()
        codes = run(["diff", a, b]), run(["diff", a, b, "--json"])
        told, said = capsys.readouterr()
        assert codes[0] == codes[1]
        assert "canary" not in (told + said)
        return codes[0], *told.split("\n{", 1)

    return asked


@pytest.fixture
def diff_manifests(diff, tmp_path):
    def asked(before: dict, after: dict):
        for name, value in (("a.json", before), ("b.json", after)):
            (tmp_path / name).write_text(json.dumps(changed(**value)))
        return diff("a.json", "b.json")

    return asked


@pytest.fixture
def diff_images(diff, tmp_path):
    def asked(before: dict, after: dict):
        for name, value in (("a", before), ("b", after)):
            write_layout(image_of_layers(layer(file("f")), config=value), tmp_path / name)
        return diff("a", "b")

    return asked


def recorded(secret: str) -> dict:
    token = f"ghp_{secret}{'a1B2' * 9}"
    return {
        "variables": {
            "API_TOKEN": secret,
            "AWS_SECRET_ACCESS_KEY": f"{secret}/x",
            "PLAIN": token,
            "XLA_FLAGS": f"--xla_dump_to=https://user:{secret}@h.example.com/d",
        },
        "entry": {
            "command": ["train", f"--password={secret}", "--api-key", secret, f"https://u:{secret}@h.example.com/"]
        },
        "code": {"commit": "1" * 40, "remote": f"https://h.example.com/r?access_token={secret}"},
    }


def test_of_manifests_that_others_wrote_no_secret_is_told_but_that_it_is_another(diff_manifests):
    code, told, data = diff_manifests(recorded(ONE), recorded(TWO))
    assert code == 16
    for name in ("API_TOKEN", "AWS_SECRET_ACCESS_KEY", "PLAIN", "XLA_FLAGS"):
        [line] = [line for line in told.splitlines() if line.split()[:1] == [f"variables.{name}"]]
        assert line.endswith(" (secret) -> (another secret)")
    facts = {it["name"]: (it["before"], it["after"]) for it in json.loads("{" + data)["facts"]}
    words = ["--password=[redacted]", "[redacted]", "https://h.example.com/"]
    for name in (*(f"entry.command.{word}" for word in words), "code.remote"):
        assert facts[name] == ("(secret)", "(another secret)")
    assert len(facts) == 8


def test_a_secret_that_one_has_and_the_other_not(diff_manifests):
    _, told, _ = diff_manifests({}, recorded(ONE))
    assert "variables" in told
    _, told, data = diff_manifests({"variables": {"A": "1"}}, {"variables": {"A": "1", "API_TOKEN": ONE}})
    assert "variables.API_TOKEN  not there -> (secret)" in told
    assert '"after": "(secret)"' in data


def test_what_was_cut_out_of_one_is_no_difference(diff_manifests):
    cut = {"variables": {"API_TOKEN": "[redacted]"}, "entry": {"command": ["t", "--password=[redacted]", "-v"]}}
    whole = {"variables": {"API_TOKEN": ONE}, "entry": {"command": ["t", f"--password={ONE}", "-v"]}}
    assert diff_manifests(cut, whole)[0] == diff_manifests(whole, cut)[0] == 0
    assert diff_manifests(cut, whole | {"entry": {"command": ["t", f"--password={ONE}"]}})[0] == 16


def test_equal_secrets_are_equal_and_two_passwords_are_two(diff_manifests):
    assert diff_manifests(recorded(ONE), recorded(ONE))[0] == 0
    before = {"entry": {"command": ["t", "--password", ONE, "--token", ONE]}}
    after = {"entry": {"command": ["t", "--password", ONE, "--token", TWO]}}
    code, told, _ = diff_manifests(before, after)
    assert (code, told.splitlines()[0].startswith("different: 1 of ")) == (16, True)


def test_a_name_that_holds_a_secret_is_told_without_it(diff_manifests):
    data = [{"contract__data": [{"uri": f"https://h.example.com/x?access_token={it}", "size": 1}]} for it in (ONE, TWO)]
    code, told, _ = diff_manifests(*data)
    assert code == 16
    assert "contract.data.https://h.example.com/x?access_token=[redacted].uri  (secret) -> (another secret)" in told
    assert told.startswith("different: 1 of ")
    _, told, _ = diff_manifests({}, {"variables": {f"ghp_{ONE}{'a1B2' * 9}": "x"}})
    assert "variables" in told


def test_of_images_no_secret_is_told_but_that_it_is_another(diff_images):
    def configured(secret: str) -> dict:
        return {
            "Env": [f"API_TOKEN={secret}", f"DB=https://u:{secret}@h.example.com/", "PATH=/bin"],
            "Labels": {"k_password": secret, "plain": "x"},
            "Entrypoint": ["serve", "--password", secret],
            "Healthcheck": {"Test": ["CMD", "curl", f"https://u:{secret}@h.example.com/"]},
            "OnBuild": [f"ENV API_TOKEN={secret}"],
        }

    code, told, data = diff_images(configured(ONE), configured(TWO))
    assert code == 16
    names = ("Env API_TOKEN", "Env DB", "Entrypoint", "Healthcheck", "OnBuild", "Labels k_password")
    wanted = {f"config   {name}: (secret) -> (another secret)" for name in names}
    assert wanted == {line for line in told.splitlines() if line.startswith("config")}
    assert {it["after"] for it in json.loads("{" + data)["config"]} == {"(another secret)"}
    code, told, _ = diff_images({}, configured(ONE))
    assert "config   Env API_TOKEN: not set -> (secret)" in told
    assert 'config   Env DB: not set -> "https://h.example.com/"' in told
    assert 'config   Entrypoint: not set -> ["serve", "--password", "[redacted]"]' in told


@given(st.sampled_from(["API_TOKEN", "PLAIN", "key"]), *[st.one_of(st.none(), st.text(max_size=9))] * 2, st.booleans())
def test_what_differs_differs_still(name, before, after, sure):
    one, other = without_secrets(name, before, after, sure=sure)
    assert (one == other) == (before == after)
