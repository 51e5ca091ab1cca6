import logging

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.errors import RegistryError
from envbuild.registry.auth import Challenge, challenges
from envbuild.registry.client import Registry
from envbuild.registry.faults import printable, redacted, unreachable_error
from envbuild.registry.transport import Transport, api_root, resolve_location
from envbuild.retry import Retry
from tests.fakes.registry import FakeRegistry

PUBLIC, PRIVATE, LOCAL = "https://8.8.8.8", "https://10.1.2.3", "http://127.0.0.1:5000"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("127.9.9.9", "http://127.9.9.9"),
        ("localhost:5000", "http://localhost:5000"),
        ("[::1]:5000", "http://[::1]:5000"),
        ("10.0.0.1:5000", "https://10.0.0.1:5000"),
        ("localhost.example.com", "https://localhost.example.com"),
        ("docker.io", "https://registry-1.docker.io"),
        ("europe-docker.pkg.dev", "https://europe-docker.pkg.dev"),
    ],
)
def test_http_is_spoken_on_loopback_only(host, url):
    assert str(api_root(host)) == url


def test_a_port_that_is_none_is_a_registry_error():
    with pytest.raises(RegistryError, match="not a registry host"):
        api_root("localhost:99999")


@pytest.mark.parametrize(
    ("origin", "location", "target"),
    [
        (LOCAL, "/v2/x?a=%2B", f"{LOCAL}/v2/x?a=%2B"),
        (PUBLIC, "https://9.9.9.9/x", "https://9.9.9.9/x"),
        (PRIVATE, "https://9.9.9.9/x", "https://9.9.9.9/x"),
        (PRIVATE, "https://10.9.9.9/x", "https://10.9.9.9/x"),
        (LOCAL, "http://127.0.0.1:9/x", "http://127.0.0.1:9/x"),
        (LOCAL, "https://10.1.1.1/x", "https://10.1.1.1/x"),
    ],
)
def test_a_registry_may_send_its_clients_outwards(origin, location, target):
    assert str(resolve_location(httpx.URL(origin), httpx.URL(origin), location)) == target


@pytest.mark.parametrize(
    ("origin", "location"),
    [
        (PUBLIC, "http://9.9.9.9/x"),
        (PUBLIC, "http://127.0.0.1/x"),
        (PUBLIC, "https://127.0.0.1/x"),
        (PUBLIC, "https://localhost/x"),
        (PUBLIC, "https://10.0.0.1/x"),
        (PUBLIC, "https://192.168.1.1/x"),
        (PUBLIC, "https://100.64.0.1/x"),
        (PUBLIC, "https://169.254.169.254/computeMetadata/v1/"),
        (PUBLIC, "https://[::1]/x"),
        (PUBLIC, "https://[::ffff:10.0.0.1]/x"),
        (PUBLIC, "https://0.0.0.0/x"),
        (PRIVATE, "https://169.254.169.254/x"),
        (PRIVATE, "https://127.0.0.1/x"),
        (PUBLIC, "file:///etc/passwd"),
        (PUBLIC, "https://user:word@9.9.9.9/x"),
        (PUBLIC, "https://user:word@8.8.8.8/x"),
        (PUBLIC, "https://9.9.9.9:99999/x"),
        (PUBLIC, "https://[zz]/"),
    ],
)
def test_a_registry_may_not_send_its_clients_inwards_or_to_plain_http(origin, location):
    with pytest.raises(RegistryError) as caught:
        resolve_location(httpx.URL(origin), httpx.URL(origin), location)
    assert "word" not in str(caught.value)


def test_a_name_that_is_unknown_cannot_be_reached():
    retry = Retry(first=0, longest=0)
    with Registry("no-such-host.invalid", retry=retry) as registry, pytest.raises(RegistryError) as caught:
        registry.manifest("app", "v1")
    assert caught.value.status is None


def test_tls_that_fails_is_said_and_not_tried_again():
    with FakeRegistry() as plain:
        url = httpx.URL(f"https://{plain.host}/v2/")
        with pytest.raises(RegistryError, match="cannot be trusted") as caught:
            Transport(url, keep_alive=False).send("GET", url, headers={})
    assert "SSL_CERT_FILE" in caught.value.todo


def test_addresses_are_shown_without_user_query_and_fragment():
    assert redacted("https://user:word@a.b/c?sig=x#y") == "https://a.b/c"


def test_the_http_libraries_do_not_log_addresses():
    assert not logging.getLogger("httpx").isEnabledFor(logging.INFO)
    assert not logging.getLogger("httpcore.http11").isEnabledFor(logging.DEBUG)


@given(st.text())
def test_foreign_text_becomes_one_printable_bounded_line(text):
    line = printable(text, 50)
    assert len(line) <= 50
    assert line.isprintable()


_NAMES = st.text("az09_-", min_size=1, max_size=8).map("a".__add__)


@given(
    st.lists(
        st.tuples(_NAMES, st.dictionaries(_NAMES, st.text(st.characters(codec="ascii"), max_size=9), max_size=3)),
        max_size=3,
    )
)
def test_challenges_are_read_as_they_are_written(values):
    def quoted(text: str) -> str:
        return '"' + "".join("\\" + letter if letter in '"\\' else letter for letter in text) + '"'

    header = ", ".join(
        " ".join((scheme, ",".join(f"{name}={quoted(value)}" for name, value in parameters.items()))).rstrip()
        for scheme, parameters in values
    )
    assert list(challenges(header)) == [Challenge(scheme, parameters) for scheme, parameters in values]


@given(st.text())
def test_no_challenge_makes_the_reader_fail(header):
    list(challenges(header))


@pytest.mark.parametrize("host", ["[::1]:5000", "example.com:5000", "example.com"])
def test_who_cannot_be_reached_is_named_as_it_was_asked_for(host):
    assert str(unreachable_error(httpx.ConnectError("refused"), httpx.URL(f"https://me:secret@{host}/v2/"))).startswith(
        f"{host} cannot be reached: refused\n"
    )
