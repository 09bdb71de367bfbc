"""docs/spec.md names a function and a test for each definition: both must exist."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "spec.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`(sits\.[a-z_0-9.]+\.[A-Za-z_]+)`", TEXT)))
TESTS = sorted(set(re.findall(r"`(tests/[a-z_0-9/]+\.py::test_[a-z_0-9]+)`", TEXT)))


def test_the_document_names_enough() -> None:
    assert len(NAMES) >= 20
    assert len(TESTS) >= 20


@pytest.mark.parametrize("name", NAMES)
def test_named_code_exists(name: str) -> None:
    if importlib.util.find_spec("torch") is None and name.startswith(("sits.quant", "sits.kernels")):
        pytest.skip("torch is not installed")
    module, _, attribute = name.rpartition(".")
    if importlib.util.find_spec(name) is None if _is_package(module) else True:
        assert hasattr(importlib.import_module(module), attribute), name


def _is_package(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.submodule_search_locations is not None


@pytest.mark.parametrize("test", TESTS)
def test_named_tests_exist(test: str) -> None:
    path, _, function = test.partition("::")
    assert re.search(rf"^def {function}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), test
