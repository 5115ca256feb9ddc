"""A small model of transformers with this attention and with PyTorch's."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import flash_attention_rs as fa  # noqa: E402


@pytest.mark.parametrize("padded", [False, True])
def test_llama(padded):
    name = fa.register_transformers()
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 50, (2, 12))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :5] = 0
    logits = []
    with torch.no_grad():
        for implementation in ("sdpa", name):
            model.set_attn_implementation(implementation)
            logits.append(model(ids, attention_mask=mask).logits[mask.bool()])
    torch.testing.assert_close(*logits, atol=1e-3, rtol=1e-3)


def test_names_that_transformers_takes_for_its_own():
    with pytest.raises(ValueError, match="flash"):
        fa.register_transformers("flash_attention_rs")
