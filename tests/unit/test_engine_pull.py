"""How much of an image is here, by what engines say while they pull."""

from typing import Any

from envbuild.engine.image import Layer, layer_after, pulled


def event(status: str, layer: str, current: int = 0, total: int = 0) -> dict[str, Any]:
    detail = {"current": current, "total": total} if total else {}
    return {"status": status, "id": layer, "progressDetail": detail}


def after(*events: dict[str, Any]) -> tuple[int, int | None]:
    layers: dict[str, Layer] = {}
    for it in events:
        if layer := layer_after(it, layers.get(it["id"])):
            layers[it["id"]] = layer
    return pulled(layers.values())


BEGUN = [event("Pulling from a/b", "1.0"), event("Already exists", "old"), event("Pulling fs layer", "a")]
BEGUN.append(event("Pulling fs layer", "b"))


def test_all_that_was_downloaded_is_counted_once_and_whole():
    large = [event("Downloading", "a", 10, 1000), event("Waiting", "a"), event("Download complete", "a")]
    assert after(*BEGUN) == (0, None)
    assert after(*BEGUN, *large[:2]) == (10, None)
    assert after(*BEGUN, *large) == (1000, None)
    small = [event("Download complete", "b"), event("Extracting", "b", 5, 50), event("Pull complete", "b")]
    assert after(*BEGUN, *large, *small) == (1050, 1050)


def test_an_engine_that_unpacks_in_seconds_adds_no_bytes():
    seconds = {"status": "Extracting", "id": "a", "progressDetail": {"current": 3, "units": "s"}}
    loaded = [event("Downloading", "a", 900, 1000), event("Download complete", "a")]
    assert after(*BEGUN[:3], *loaded, seconds) == (1000, 1000)
