"""YAML that every reader takes for the same data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import BadRequest
from stoker.fleet.sky.yaml import Plain, yaml_text

yaml = pytest.importorskip("yaml")

TRAPS = [
    *("yes", "No", "on", "OFF", "y", "null", "~", "true", "0x1f", "1e5", "1_000", "12:30:45"),
    *("2020-01-01", ".inf", "-", "- a", "a: b", "a #b", "#a", "&a", "*a", "!!x", "%x", "@x"),
    *(
        "",
        " a",
        "a ",
        "'",
        '"',
        "\\",
        "{}",
        "[]",
        "{{ x }}",
        "|",
        ">",
        "a,b",
        "=",
        "<<",
        "s3://a/b",
    ),
    *("it's", "ä☃😀", "~/x", "...", "---", "a:", ":a", "1.", ".5", "+1", "0o7", "none", "NaN"),
]
printable = st.text(min_size=0, max_size=20).filter(str.isprintable)
texts = st.sampled_from(TRAPS) | printable
scalars = texts | st.none() | st.booleans() | st.integers() | st.floats(-1e6, 1e6)
scripts = st.lists(printable, max_size=5).map(lambda lines: "\n".join(["a", *lines, "b"]) + "\n")
values = st.recursive(
    scalars | scripts | st.lists(scalars, max_size=3),
    lambda inner: st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(texts, values, min_size=1, max_size=5))
def test_a_reader_gets_the_same_data(data: dict[str, Plain]) -> None:
    read = yaml.safe_load(yaml_text(data))
    assert read == data
    assert repr(read) == repr(data)  # 1, 1.0 and True are equal


def test_plain_texts_have_no_quotes() -> None:
    data: dict[str, Plain] = {"infra": "aws/us-east-1", "gpus": "A10G:1", "~/x-1.whl": "./x.whl"}
    assert yaml_text(data).splitlines() == [
        "infra: aws/us-east-1",
        "gpus: A10G:1",
        "~/x-1.whl: ./x.whl",
    ]


@pytest.mark.parametrize("text", ["a\x1b[2J", "a\rb", "a\u2028b", "a\udc80", "a\x85b", "\ufeff"])
@pytest.mark.parametrize("place", ["value", "key", "line"])
def test_control_characters_are_refused(text: str, place: str) -> None:
    data = {"value": {"x": text}, "key": {text: "x"}, "line": {"x": f"echo\n{text}\n"}}[place]
    with pytest.raises(BadRequest, match="control character"):
        yaml_text(data)
