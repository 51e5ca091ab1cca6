"""Record tables with columns of every type and make them again, as the golden check does; refuse the others by name."""

# pandas is installed only where this runs.
# mypy: ignore-errors

import base64
import datetime as dt
import json
import re
from decimal import Decimal

import numpy as np
import pandas as pd

import envbuild
from envbuild.verify.golden.program import table_of

NUMBERS = re.compile("bool|u?int[0-9]+|float[0-9]+")
TIMES = pd.Series(["2024-01-01 10:00:00.123456789", None])
KEPT = {
    "a/b c": np.array([1, 2], dtype="int8"),
    "0": [1.5, float("nan")],
    "yes": [True, False],
    "city": ["Köln", None],
    "gap": pd.Series(["x", float("nan")], dtype="object"),
    "none": pd.Series(["x", None], dtype="object"),
    "flag": pd.Series([True, None], dtype="object"),
    "word": pd.array(["a", None], dtype="string"),
    "count": pd.array([2**62 + 1, None], dtype="Int64"),
    "open": pd.array([True, None], dtype="boolean"),
    "size": pd.Categorical(["b", None], ["c", "b", "a"]),
    "step": pd.Categorical([3, 1]),
    "time": pd.to_datetime(TIMES),
    "zone": pd.to_datetime(TIMES).dt.tz_localize("Europe/Berlin"),
}
REFUSED = {
    "price": ([Decimal(1)], "object and holds Decimal"),
    "rows": ([[1]], "object and holds list"),
    "both": (["a", 1], "object and holds int, str"),
    "day": ([dt.date(2024, 1, 1)], "object, which cannot be recorded"),
    "size": (pd.Categorical(["b"], ["b", "a"], ordered=True), "ordered category of "),
    "since": (pd.Categorical(pd.to_datetime(["2024-01-01"])), "category of datetime64["),
    "month": (pd.period_range("2024-01", periods=1, freq="M"), "period[M] and holds Period"),
}


def order(item):
    """An input as the program gets it."""
    data = base64.b64decode(item["data"])
    more = {"data": item["data"]} if NUMBERS.fullmatch(item["dtype"]) else {"values": json.loads(data)}
    if "categories" in item:
        more["categories"] = json.loads(base64.b64decode(item["categories"]))
    return dict(item, table=True, **more)


def error_of(table):
    try:
        envbuild.golden_sample(table, [1.0])
    except ValueError as error:
        return str(error)
    raise AssertionError(f"{list(table)} was recorded")


def main():
    table = pd.DataFrame(KEPT)
    table.index = [7, 9]
    sample = envbuild.golden_sample(table, pd.Series(["ja", "nein"]))
    assert sample["table"]
    assert base64.b64decode(sample["outputs"][0]["data"]) == b'["ja","nein"]'
    made = table_of(pd, [order(it) for it in sample["inputs"]], ())
    pd.testing.assert_frame_equal(made, table.reset_index(drop=True))
    assert [made[name][1] is None for name in ("gap", "none")] == [False, True]
    for name, (values, says) in REFUSED.items():
        said = error_of(pd.DataFrame({name: values}))
        assert said.startswith(f"golden sample: column {name!r} has type {says}"), said
        assert "convert it to text" in said, said
    assert "2 columns are named 'x'" in error_of(pd.DataFrame([["a", "b"]], columns=["x", "x"]))
    assert "needs columns with names" in error_of(pd.DataFrame([["a"]]))
    assert "the inputs have 2 rows" in error_of(pd.DataFrame({"x": [1, 2]}))
    numbers = envbuild.golden_sample(pd.DataFrame([[1, 2]]), [1.0])
    assert [it["shape"] for it in numbers["inputs"]] == [[1, 2]]
    assert "table" not in numbers


main()
