"""Indexes that know their users by the query of their address: it is sent behind the path, and shown and kept nowhere."""

import pytest

from envbuild.errors import LockError
from envbuild.lock.download import fetch
from envbuild.lock.formats import pylock_text
from envbuild.lock.index import files_of, make_client, parse_page
from envbuild.lock.resolvers import PipToolsResolver, UvResolver
from envbuild.lock.settings import IndexSettings, bare_url, page_url, read_settings, without_credentials
from tests.fakes.index import closed_port, serving
from tests.fakes.wheels import make_wheel
from tests.unit.locking import HERE, TARGET, forget_settings

SECRET = "s3cretpw"
QUERY = f"token={SECRET}"
PURE = make_wheel("pure", "1.0")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch, tmp_path):
    forget_settings(monkeypatch, tmp_path)
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")


@pytest.fixture
def index():
    with serving(PURE) as served:
        served.query = QUERY
        yield served


def test_the_query_stays_behind_the_path():
    login = f"https://u:{SECRET}@example.com/simple"
    assert page_url(f"{login}/?{QUERY}#x", "jax") == f"https://example.com/simple/jax/?{QUERY}"
    assert page_url(login, "jax") == "https://example.com/simple/jax/"
    assert page_url(f"{login}/page.html?{QUERY}") == f"https://example.com/simple/page.html?{QUERY}"


def test_addresses_are_shown_without_their_query():
    assert bare_url(f"https://example.com/simple?{QUERY}") == "https://example.com/simple"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("`https://example.com/a/?token=s3cretpw` failed", "`https://example.com/a/` failed"),
        ("(see https://example.com/a?x=1&token=s3cretpw).", "(see https://example.com/a)."),
        ("in https://u:pw@example.com/a?token=s3c'ret)pw/jax/, or", "in https://example.com/a, or"),
        ("https://example.com?s3cretpw", "https://example.com"),
        ("https://example.com/a?one=1\nhttps://example.com/b?two=2", "https://example.com/a\nhttps://example.com/b"),
        ("is it there? https://example.com/a why?", "is it there? https://example.com/a why?"),
    ],
)
def test_what_a_program_said_is_shown_without_queries(said, shown):
    assert without_credentials(said) == shown


@pytest.mark.parametrize(
    "variable", ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX"]
)
def test_an_index_that_is_down_is_named_without_its_query(monkeypatch, variable):
    monkeypatch.delenv("UV_DEFAULT_INDEX")
    down = f"http://127.0.0.1:{closed_port()}/simple"
    monkeypatch.setenv("UV_INDEX_URL" if variable.startswith("UV") else "PIP_INDEX_URL", down)
    monkeypatch.setenv(variable, f"{down}?{QUERY}")
    with pytest.raises(LockError) as caught:
        UvResolver().resolve(("pure==1.0",), TARGET)
    assert SECRET not in str(caught.value)
    assert down in str(caught.value)


@pytest.mark.parametrize("resolver", [UvResolver, PipToolsResolver])
def test_what_a_resolver_says_of_an_index_is_shown_without_its_query(index, resolver):
    settings = IndexSettings(default=f"{index.url}?{QUERY}", from_pip=True)
    with pytest.raises(LockError) as caught:
        resolver(settings=settings).resolve(("pure==2.0",), HERE)
    assert SECRET not in f"{caught.value} {caught.value.where} {caught.value.todo}"


def test_a_query_opens_the_index_and_is_in_no_lock(monkeypatch, index, tmp_path):
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{index.url}?{QUERY}")
    lock = UvResolver().resolve(("pure==1.0",), TARGET)
    assert [it.url for it in lock.wheels] == [index.file_url(PURE.filename)]
    assert SECRET not in pylock_text(lock).decode()
    [(_, path)] = fetch(lock.wheels, tmp_path / "cache", settings=read_settings())
    assert path.read_bytes() == PURE.data


def test_pages_of_links_are_asked_with_their_query(index):
    settings = IndexSettings(default=None, find_links=(f"{index.url}/pure/?{QUERY}",))
    with make_client(settings) as client:
        assert [it.filename for it in files_of(client, settings, "pure")] == [PURE.filename]


def test_signatures_of_links_are_not_kept():
    [file] = parse_page(
        f'<a href="a-1-py3-none-any.whl?sig={SECRET}#sha256={"a" * 64}">a</a>', "https://example.com/a/"
    )
    assert (file.url, file.filename) == ("https://example.com/a/a-1-py3-none-any.whl", "a-1-py3-none-any.whl")


@pytest.mark.parametrize(
    "address", [f"https://u:{SECRET}@example.com/x", f"https://u:{SECRET}/y@example.com/x?{QUERY}"]
)
def test_an_address_in_place_of_a_folder_is_shown_without_credentials(tmp_path, address):
    with pytest.raises(LockError) as caught:
        read_settings([type(tmp_path)(address)])
    assert caught.value.where == "--find-links https://example.com/x"
