"""``sits kernels`` on a machine without a GPU: what it lists, and errors a user can act on."""

import pytest
from click.testing import CliRunner

from sits.cli.kernels_command import command
from sits.errors import InputError


def test_list_names_the_reference_of_every_operator():
    result = CliRunner().invoke(command, ["list", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    lines = {line.split()[0]: line for line in result.output.splitlines() if line}
    for operator in ("rms_norm", "attention", "linear_int4", "linear_fp8"):
        assert "reference" in lines[operator]


def test_list_for_cuda_shows_the_triton_kernels_and_the_choices_of_int4():
    result = CliRunner().invoke(command, ["list", "--device", "cuda"])
    assert result.exit_code == 0, result.output
    assert "triton, reference" in result.output
    assert "measured, triton, humming, wgmma, dense, reference" in result.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(["--batches", "1,x"], "not a list"), (["--batches", "0"], "not a list"), (["--model", "nope"], "preset")],
)
def test_tune_refuses_wrong_input(arguments, text):
    result = CliRunner().invoke(command, ["tune", *arguments])
    assert isinstance(result.exception, InputError)
    assert text in str(result.exception)


def test_tune_without_a_gpu_says_so():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    result = CliRunner().invoke(command, ["tune"])
    assert isinstance(result.exception, InputError)
    assert "CUDA device" in str(result.exception)


def test_fused_decode_attention_is_chosen_and_steps_aside_for_the_ablation_switch(monkeypatch):
    from sits.kernels.ops import LayerOps

    assert LayerOps("cuda").chosen["rope_decode_attention"] == "triton"
    assert "rope_decode_attention" not in LayerOps("cpu").chosen
    monkeypatch.setenv("SITS_KERNELS", "rope_kv_write=reference")
    assert "rope_decode_attention" not in LayerOps("cuda").chosen
