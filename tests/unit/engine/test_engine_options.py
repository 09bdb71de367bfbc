"""What an engine refuses to be told."""

import pytest

from sits.engine.options import EngineOptions
from sits.errors import InputError


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"int4_prefill": "fast"}, "int4_prefill"),
        ({"memory_share": 0.0}, "memory_share"),
        ({"max_running": 0}, "max_running"),
        ({"block_size": True}, "block_size"),
    ],
)
def test_values_that_cannot_work_are_named(settings, named):
    with pytest.raises(InputError, match=named):
        EngineOptions(**settings)


def test_int4_prefill_is_left_to_the_environment_unless_asked():
    assert EngineOptions().int4_prefill is None
    assert EngineOptions(int4_prefill="fp8").int4_prefill == "fp8"
