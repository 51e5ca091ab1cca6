"""What a build is given to reach an index: as pip and netrc read it, in files that nobody else reads, and no more."""

import configparser
import netrc
import stat

import pytest

from envbuild.build.context import why_wheelhouse
from envbuild.engine.buildkit import hidden_words, index_secrets, pip_configuration, secret_files
from envbuild.lock.settings import IndexSettings

INDEX = "https://me:pass%40word@example.com/simple"
SETTINGS = IndexSettings(
    default=INDEX,
    extra=("https://a.example.com/%2B", "https://b.example.com"),
    find_links=("/wheels", "file:///wheels", "https://example.com/page"),
    trusted_hosts=("a.example.com",),
)


@pytest.fixture(autouse=True)
def _nobodys(monkeypatch, tmp_path):
    for name in ("SSL_CERT_FILE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_pip_reads_the_settings_as_they_are():
    parser = configparser.RawConfigParser()
    parser.read_string(pip_configuration(SETTINGS).decode())
    found = dict(parser["global"])
    assert found["index-url"] == INDEX
    assert found["extra-index-url"].split() == list(SETTINGS.extra)
    assert found["find-links"].split() == ["https://example.com/page"]
    assert found["trusted-host"].split() == ["a.example.com"]
    assert pip_configuration(IndexSettings(default=None)) == b"[global]\n"


def test_of_a_netrc_only_the_logins_for_the_index_are_given(tmp_path, monkeypatch):
    place = tmp_path / "netrc"
    place.write_text('machine example.com login me password "to ken"\nmachine other.example.com login x password y\n')
    place.chmod(0o600)
    monkeypatch.setenv("NETRC", str(place))
    secrets = index_secrets(SETTINGS, ())
    (tmp_path / "given").write_bytes(secrets["netrc"])
    assert netrc.netrc(tmp_path / "given").hosts == {"example.com": ("me", "", "to ken")}
    assert hidden_words(SETTINGS, secrets) == ("pass%40word", "pass@word", "to ken")


def test_certificates_are_those_that_were_asked_for_first(tmp_path, monkeypatch):
    files = {name: tmp_path / name for name in ("asked", "variable", "pip")}
    for name, path in files.items():
        path.write_text(name)
    of_pip = IndexSettings(default=None, certificates=str(files["pip"]))
    assert index_secrets(of_pip, ())["ca"] == b"pip"
    monkeypatch.setenv("SSL_CERT_FILE", str(files["variable"]))
    assert index_secrets(of_pip, ())["ca"] == b"variable"
    asked = IndexSettings(default=None, certificates=str(files["pip"]), ca_bundle=str(files["asked"]))
    assert index_secrets(asked, ())["ca"] == b"asked"


def test_the_files_are_for_this_user_and_gone_afterwards():
    with secret_files({"pip": b"x", "ca": b"y"}) as paths:
        found = dict(paths)
        assert {name: path.read_bytes() for name, path in found.items()} == {"pip": b"x", "ca": b"y"}
        modes = {stat.S_IMODE(path.stat().st_mode) for path in found.values()}
        assert (modes, stat.S_IMODE(found["pip"].parent.stat().st_mode)) == ({0o600}, 0o700)
    assert not any(path.parent.exists() for path in found.values())


@pytest.mark.parametrize(
    ("settings", "options", "reason"),
    [
        (SETTINGS, {}, ""),
        (SETTINGS, {"secrets": False}, "no secrets"),
        (SETTINGS, {"needed": True}, "read here anyway"),
        (SETTINGS, {"variants": True}, "no wheel variant"),
        (IndexSettings(default=None, offline=True), {}, "nothing but folders"),
        (IndexSettings(default=INDEX, keyring=True), {}, "keyring"),
        *(
            (IndexSettings(default=index, extra=extra), {}, "on this machine")
            for index, extra in (
                ("http://127.0.0.1:8080/simple", ()),
                ("http://[::1]/simple", ()),
                (INDEX, ("file:///index",)),
            )
        ),
    ],
)
def test_when_the_wheels_have_to_lie_in_the_context(settings, options, reason):
    found = why_wheelhouse(settings, **({"secrets": True, "needed": False} | options))
    assert reason in found
    assert bool(reason) == bool(found)
