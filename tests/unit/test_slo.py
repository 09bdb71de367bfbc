"""The text form of objectives."""

from __future__ import annotations

import pytest

from sits.errors import InputError
from sits.spec.slo import parse_slo


def test_units() -> None:
    assert parse_slo("ttft=500ms, itl=0.05s,e2e=3000,tpot=900us") == {
        "ttft_ms": 500,
        "itl_ms": 50,
        "e2e_ms": 3000,
        "tpot_ms": pytest.approx(0.9),
    }
    assert parse_slo(None) == parse_slo("") == {}
    assert parse_slo("ttft<=1s") == {"ttft_ms": 1000}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("speed=5ms", "speed"),
        ("ttft", "ttft"),
        ("ttft=-5ms", "cannot read"),
        ("ttft=0", "above zero"),
        ("ttft=5min", "cannot read"),
        ("ttft=5,ttft=6", "twice"),
    ],
)
def test_what_is_wrong_is_said(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_slo(text)
