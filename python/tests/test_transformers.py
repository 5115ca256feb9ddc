"""A small model of transformers with this attention and with PyTorch's."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import flash_attention_rs as fa  # noqa: E402

NAME = fa.register_transformers()


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture
def calls(monkeypatch):
    """Counts calls, so that no test passes without one."""
    from flash_attention_rs import _torch

    counted, attention = [], _torch.attention
    monkeypatch.setattr(_torch, "attention", lambda *a, **b: counted.append(b) or attention(*a, **b))
    return counted


@pytest.mark.parametrize("padded", [False, True])
def test_llama(model, calls, padded):
    ids = torch.randint(0, 50, (2, 12))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :5] = 0
    logits = []
    with torch.no_grad():
        for implementation in ("sdpa", NAME):
            model.set_attn_implementation(implementation)
            logits.append(model(ids, attention_mask=mask).logits[mask.bool()])
    torch.testing.assert_close(*logits, atol=1e-3, rtol=1e-3)
    assert len(calls) == 2 and ("cu_seqlens" in calls[0]) == padded


def test_sequences_by_position(model, calls):
    parts = [torch.randint(0, 50, (1, n)) for n in (7, 5)]
    positions = torch.cat([torch.arange(7), torch.arange(5)])[None]
    with torch.no_grad():
        model.set_attn_implementation("sdpa")
        want = torch.cat([model(part).logits for part in parts], 1)
        model.set_attn_implementation(NAME)
        found = model(torch.cat(parts, 1), position_ids=positions).logits
    torch.testing.assert_close(found, want, atol=1e-3, rtol=1e-3)
    assert "cu_seqlens" in calls[0]


def test_generation(model, calls):
    ids, mask = torch.randint(0, 50, (2, 6)), torch.ones(2, 6, dtype=torch.long)
    mask[0, :2] = 0
    tokens = []
    for implementation in ("sdpa", NAME):
        model.set_attn_implementation(implementation)
        tokens.append(
            model.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False, pad_token_id=0)
        )
    assert torch.equal(*tokens) and calls


def test_names_that_transformers_takes_for_its_own():
    with pytest.raises(ValueError, match="flash"):
        fa.register_transformers("flash_attention_rs")
