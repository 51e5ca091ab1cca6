"""Layers as what they do to a tree: whiteouts, opaque folders, hard links, and only as many read as needed."""

import io
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.diff.comparison import Rules, compare
from envbuild.diff.layers import read_layer, read_pair
from envbuild.errors import BuildError
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_TAR, LAYER_ZSTD, Descriptor, Image, Layer
from envbuild.oci.rootfs import Node
from tests.fakes.trees import image_of_layers
from tests.unit.comparing import file, folder, gone, hard, image, layer, link, opaque, tar_of

EMPTY = image()
NAMES = ("a", "b")
Model = dict[str, tuple]
"""What lies at a path, in the plainest words: kind, content, mode, owner."""


def tree_of(*layers) -> dict[str, Node]:
    found = dict(read_pair(EMPTY, image(*layers), NAMES, lambda *_: None)[1])
    del found[""]
    return found


def paths_of(*layers) -> list[str]:
    return sorted(tree_of(*layers))


def test_a_whiteout_hides_a_path_below_and_nothing_beside_it():
    below = [file("d/one"), file("d/two/x"), file("d/twofold")]
    assert paths_of(below, [gone("d/two")]) == ["d", "d/one", "d/twofold"]
    assert paths_of(below, [gone("d/two"), file("d/two/y")]) == ["d", "d/one", "d/two", "d/two/y", "d/twofold"]
    assert paths_of(below, [file("d/two/y"), gone("d/two")]) == ["d", "d/one", "d/two", "d/two/y", "d/twofold"]


def test_what_was_deleted_may_come_back_in_a_later_layer():
    tree = tree_of([file("a", b"1", mode=0o600)], [gone("a")], [file("a", b"2")])
    assert tree == {"a": Node("file", 0o644, sha256=bytes.fromhex(Digest.of(b"2").hex))}


def test_an_opaque_folder_shows_only_what_its_own_layer_has():
    below = [folder("d", 0o700), file("d/one"), file("d/sub/two"), file("e")]
    assert paths_of(below, [opaque("d"), file("d/three")]) == ["d", "d/three", "e"]
    assert tree_of(below, [opaque("d")])["d"].mode == 0o700
    assert paths_of(below, [opaque("")]) == []


def test_a_file_that_becomes_a_folder_and_back():
    below = [file("a/b/c"), file("f")]
    assert paths_of(below, [file("a/b")]) == ["a", "a/b", "f"]
    assert paths_of(below, [file("f/inside")]) == ["a", "a/b", "a/b/c", "f", "f/inside"]
    assert tree_of(below, [file("f/inside")])["f"].kind == "directory"
    assert paths_of(below, [file("a")], [file("a/z")]) == ["a", "a/z", "f"]


def test_a_folder_that_a_layer_describes_takes_its_attributes_and_keeps_what_lies_in_it():
    tree = tree_of([folder("d", 0o755), file("d/x")], [folder("d", 0o700, owner=(1, 2))], [file("d/y")])
    assert (tree["d"].mode, tree["d"].owner) == (0o700, (1, 2))
    assert sorted(tree) == ["d", "d/x", "d/y"]


def test_a_hard_link_is_the_file_that_it_leads_to():
    tree = tree_of([file("a", b"same", mode=0o600), hard("b", "./a"), hard("c", "/b")])
    assert tree["a"] == tree["b"] == tree["c"]
    below = tree_of([file("a", b"same", mode=0o600)], [hard("b", "a")])
    assert below["b"] == tree["a"]


def test_a_hard_link_keeps_what_it_led_to_when_the_other_name_is_written_anew():
    tree = tree_of([file("a", b"old")], [hard("b", "a")], [file("a", b"new")])
    assert tree["b"].sha256.hex() == Digest.of(b"old").hex


def test_a_hard_link_may_lead_over_another_to_a_file_in_layers_that_both_images_have():
    names_change = Counting([file("a", b"old")], [hard("b", "a")], [hard("a", "b")], [gone("b")])
    assert compared(names_change, Counting([file("a", b"old")], [file("c")])) == (["+ /c"], [1, 1, 1, 1], [0, 1])


def test_a_hard_link_to_nothing_is_told():
    with pytest.raises(BuildError, match="b as a hard link to a"):
        tree_of([hard("b", "a")])


def test_of_a_path_that_a_layer_has_twice_the_last_counts():
    assert tree_of([file("a", b"1"), file("a", b"2")])["a"].sha256.hex() == Digest.of(b"2").hex
    assert tree_of([file("x", b"x")], [file("a", b"1"), hard("a", "x")])["a"].sha256.hex() == Digest.of(b"x").hex


def test_names_are_read_as_they_are_meant():
    long = "/".join(["very-long-name" * 10] * 3)
    assert paths_of([file("./a"), file("/b"), folder("./"), file("../c")]) == ["a", "b", "c"]
    assert long in tree_of([file(long)])
    assert "ünïcode/\N{SNOWMAN}" in tree_of([file("ünïcode/\N{SNOWMAN}")])
    assert tree_of([link("l", "t" * 300)])["l"].target == "t" * 300


def test_an_empty_layer_changes_nothing():
    assert paths_of([file("a")], [], [file("b")]) == ["a", "b"]


def test_devices_and_pipes_are_known_apart():
    import tarfile

    pipe = replace(file("p", b""), kind=tarfile.FIFOTYPE)
    tree = tree_of([pipe, replace(file("d", b""), kind=tarfile.CHRTYPE)])
    assert [tree[it].kind for it in "pd"] == ["pipe", "device"]
    assert tree["d"].target == "character 0:0"


@pytest.mark.parametrize("media_type", [LAYER_TAR, LAYER_ZSTD])
def test_layers_of_other_compressions_are_read_too(media_type):
    assert read_layer(layer(file("a"), media_type=media_type), "i").nodes == read_layer(layer(file("a")), "i").nodes


@pytest.mark.parametrize("data", [b"", b"no gzip", layer(file("a")).open().read()[:-20]])
def test_a_layer_that_is_damaged_is_refused(data):
    with pytest.raises(BuildError, match="cannot be read") as caught:
        read_layer(replace(layer(file("a")), open=lambda: io.BytesIO(data)), "some/image")
    assert caught.value.where == "some/image"


def test_a_time_that_is_none_is_refused():
    data = tar_of([file("a", mtime=1.5)]).replace(b"mtime=1.5", b"mtime=inf")
    endless = Layer(Descriptor(LAYER_TAR, Digest.of(data), len(data)), Digest.of(data), lambda: io.BytesIO(data))
    with pytest.raises(BuildError) as caught:
        read_layer(endless, "some/image")
    assert caught.value.where == "some/image"


def test_a_layer_that_is_not_its_diff_id_is_refused():
    with pytest.raises(BuildError, match="diff id"):
        read_layer(replace(layer(file("a")), diff_id=Digest.of(b"other")), "some/image")


class Counting:
    """An image whose layers say how often each was opened."""

    def __init__(self, *layers) -> None:
        made = [layer(*members) for members in layers]
        self.opened = [0] * len(made)
        self.image = image_of_layers(*(replace(it, open=self._open(it, number)) for number, it in enumerate(made)))

    def _open(self, it, number):
        def opened():
            self.opened[number] += 1
            return it.open()

        return opened


def compared(*pair: Counting) -> tuple[list[str], list[int], list[int]]:
    found = compare(pair[0].image, pair[1].image)
    return [str(it) for it in found.changes], pair[0].opened, pair[1].opened


BELOW = [folder("d"), file("d/x"), file("d/y"), file("e")]


def test_equal_layers_below_are_not_read_where_they_decide_nothing():
    assert compared(Counting(BELOW, [file("d/x", b"1")]), Counting(BELOW, [file("d/x", b"2")])) == (
        ["~ /d/x: content"],
        [0, 1],
        [0, 1],
    )
    gone_in_both = Counting(BELOW, [gone("d"), file("f")]), Counting(BELOW, [gone("d")], [file("f", b"2")])
    assert compared(*gone_in_both) == (["~ /f: content"], [0, 1], [0, 1, 1])


@pytest.mark.parametrize(
    ("left", "right", "said"),
    [
        ([file("new")], [], ["- /new"]),
        ([file("e")], [], []),
        ([gone("e")], [], ["+ /e"]),
        ([gone("nothing")], [], []),
        ([gone("d")], [file("d/z")], ["~ /d/x"]),
        ([opaque("d")], [], ["+ /d/x", "+ /d/y"]),
        ([file("d/y/z")], [], ["~ /d/y: directory -> file", "- /d/y/z"]),
        ([file("d")], [folder("d")], ["~ /d: file -> directory", "+ /d/x", "+ /d/y"]),
        ([hard("h", "e")], [file("h")], []),
        ([file("d/n")], [folder("d", 0o700), file("d/n")], ["~ /d: mode 0755 -> 0700"]),
    ],
)
def test_they_are_read_once_where_something_depends_on_them(left, right, said):
    if said == ["~ /d/x"]:
        said = ["+ /d", "+ /d/x", "+ /d/y", "+ /d/z"]
    changes, before, after = compared(Counting(BELOW, left), Counting(BELOW, right))
    assert (changes, before[0], after[0]) == (said, 1, 0)


def test_a_layer_that_both_have_further_up_is_read_once():
    common = [file("common", b"c" * 100)]
    left, right = Counting([file("a")], common), Counting([file("b")], common)
    assert compared(left, right)[0] == ["- /a", "+ /b"]
    assert (left.opened, right.opened) == ([1, 1], [1, 0])


def test_images_of_one_config_are_equal_and_nothing_is_read():
    one, other = Counting(BELOW), Counting(BELOW)
    assert compare(one.image, other.image).equal
    assert (one.opened, other.opened) == ([0], [0])


# --- a naive model of the same ---------------------------------------------------------------------------------------

IMPLIED = ("directory", b"", 0o755, (0, 0))


def parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def drop(tree: Model, path: str, *, itself: bool) -> None:
    for other in [it for it in tree if it.startswith(f"{path}/") or (itself and it == path) or not path]:
        del tree[other]


def applied(tree: Model, members) -> Model:
    """Unpack a layer onto a tree as the specification says, one member after the other; whiteouts come first."""
    tree = dict(tree)
    for it in members:
        head, _, base = it.path.rpartition("/")
        if base == ".wh..wh..opq":
            drop(tree, head, itself=False)
        elif base.startswith(".wh."):
            drop(tree, "/".join(filter(None, (head, base[4:]))), itself=True)
    for it in members:
        if ".wh." in it.path:
            continue
        for parent in parents(it.path):
            if tree.get(parent, IMPLIED)[0] != "directory":
                drop(tree, parent, itself=True)
            tree.setdefault(parent, IMPLIED)
        value = made(it, tree)
        if value[0] != "directory" or tree.get(it.path, value)[0] != "directory":
            drop(tree, it.path, itself=True)
        tree[it.path] = value
    return tree


def made(it, tree: Model) -> tuple:
    if it.kind == b"1":
        return tree[it.target]
    kind = {b"0": "file", b"2": "link", b"5": "directory"}[it.kind]
    return kind, it.target.encode() or it.content, 0 if kind == "link" else it.mode, it.owner


def told(node: Node) -> tuple:
    return node.kind, node.target.encode() or node.sha256, node.mode, node.owner


def hashed(tree: Model) -> Model:
    digests = {path: bytes.fromhex(Digest.of(value[1]).hex) for path, value in tree.items() if value[0] == "file"}
    return {path: (value[0], digests.get(path, value[1]), *value[2:]) for path, value in tree.items()}


PATHS = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
OWNERS = st.sampled_from([(0, 0), (1000, 7)])
ENTRIES = st.one_of(
    st.builds(file, PATHS, st.sampled_from([b"", b"1", b"2"]), mode=st.sampled_from([0o644, 0o4755]), owner=OWNERS),
    st.builds(folder, PATHS, st.sampled_from([0o755, 0o1777]), owner=OWNERS),
    st.builds(link, PATHS, st.sampled_from(["a", "../b"]), owner=OWNERS),
    st.builds(gone, PATHS),
    st.builds(opaque, st.one_of(PATHS, st.just(""))),
)


def valid(members) -> list:
    """What of a drawn layer can be in one: no path twice, and nothing in what is no folder."""
    kept: dict[str, object] = {}
    solid: set[str] = set()
    for it in members:
        if ".wh." in it.path:
            kept.setdefault(it.path, it)
        elif not (it.path in kept or solid & {*parents(it.path)} or is_parent(it, kept)):
            kept[it.path] = it
            solid |= set() if it.kind == b"5" else {it.path}
    return list(kept.values())


def is_parent(it, kept) -> bool:
    return it.kind != b"5" and any(path.startswith(f"{it.path}/") and ".wh." not in path for path in kept)


@st.composite
def stacks(draw, below: Model | None = None, most: int = 4):
    """Layers, each with a hard link now and then to a file that is there by then, and the tree that they give."""
    layers, tree = [], below or {}
    for drawn in draw(st.lists(st.lists(ENTRIES, max_size=5), max_size=most)):
        members = valid(drawn)
        after = applied(tree, members)
        path = draw(PATHS)
        files = sorted(it for it, value in after.items() if value[0] == "file" and not related(it, path))
        own = {it.path for it in members if ".wh." not in it.path}
        if files and not any(related(path, it) for it in own) and draw(st.booleans()):
            members = [*members, hard(path, draw(st.sampled_from(files)))]
        layers.append(members)
        tree = applied(tree, members)
    return layers, tree


def related(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")


@given(stacks())
@settings(max_examples=settings().max_examples)
def test_any_stack_of_layers_gives_what_unpacking_them_one_by_one_does(stack):
    layers, tree = stack
    assert {path: told(node) for path, node in tree_of(*layers).items()} == hashed(tree)


@given(st.data())
@settings(max_examples=settings().max_examples)
def test_what_differs_does_not_depend_on_which_layers_had_to_be_read(data):
    below, ground = data.draw(stacks(most=2))
    (left, before), (right, after) = data.draw(stacks(ground, 2)), data.draw(stacks(ground, 2))
    found = compare(image(*below, *left), image(*below, *right), Rules())
    wanted, given = hashed(after), hashed(before)
    differing = {it for it in wanted.keys() | given.keys() if wanted.get(it) != given.get(it)}
    assert {it.path for it in found.changes} == differing
    for it in found.changes:
        assert (it.before and told(it.before), it.after and told(it.after)) == (given.get(it.path), wanted.get(it.path))


def test_the_property_has_seen_every_kind_of_thing():
    """So that a change of the strategies cannot empty them without a word."""
    seen: set[str] = set()

    @given(stacks())
    @settings(max_examples=200, database=None, derandomize=True)
    def look(stack):
        for members in stack[0]:
            seen.update(
                "opaque" if it.path.endswith("opq") else "gone" if ".wh." in it.path else it.kind.decode()
                for it in members
            )

    look()
    assert seen == {"opaque", "gone", "0", "1", "2", "5"}
    assert isinstance(EMPTY, Image)
