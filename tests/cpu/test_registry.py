"""The kernel registry: the best supported implementation is chosen, and the ablation switch forces another."""

from __future__ import annotations

import pytest

from sits.kernels import registry


@pytest.fixture(autouse=True)
def operator(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registry, "_implementations", {})
    monkeypatch.setattr(registry, "_loaded_devices", {"cpu", "cuda"})
    monkeypatch.delenv("SITS_KERNELS", raising=False)
    registry.register("double", "reference")(lambda x: x + x)
    registry.register("double", "fast", devices=("cuda",), priority=10, supports=lambda size=0, **_: size % 8 == 0)(
        lambda x: x * 2
    )


def test_priority_device_and_support_decide() -> None:
    assert registry.select("double", "cpu", size=8).name == "reference"
    assert registry.select("double", "cuda", size=8).name == "fast"
    assert registry.select("double", "cuda", size=9).name == "reference"


def test_the_ablation_switch_forces_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SITS_KERNELS", "*=reference")
    assert registry.select("double", "cuda", size=8).name == "reference"
    monkeypatch.setenv("SITS_KERNELS", "*=reference,double=fast")
    assert registry.select("double", "cuda", size=8).name == "fast"


def test_an_impossible_choice_names_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SITS_KERNELS", "double=nothing")
    with pytest.raises(LookupError, match=r"named 'nothing'.*fast, reference"):
        registry.select("double", "cuda", size=8)


def test_registering_a_name_again_replaces_it() -> None:
    registry.register("double", "reference")(lambda x: 3 * x)
    assert registry.select("double", "cpu").function(2) == 6
    assert len(registry.implementations("double", "cpu")) == 2
