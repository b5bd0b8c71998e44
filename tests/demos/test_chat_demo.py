"""The demo of a language model: its network, and a model file that the test writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest

import paddle_ngraph
from demos.chat_demo.network import Decoder, Shape
from demos.running import DemoError

SMALL = Shape(
    layers=2,
    width=24,
    heads=6,
    key_value_heads=2,
    feed_forward=40,
    vocabulary=300,
    longest=40,
    rotary_base=1e4,
    epsilon=1e-5,
)


@pytest.fixture(autouse=True)
def dynamic_mode():
    paddle.disable_static()
    yield
    paddle.enable_static()


def decoder(shape: Shape = SMALL) -> Decoder:
    paddle.seed(7)
    network = Decoder(shape)
    network.eval()
    return network


def tokens(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, SMALL.vocabulary, (1, count))


def logits_by_steps(network, given: np.ndarray, steps: list[int]) -> list[np.ndarray]:
    """The logits after each piece of the tokens, with the caches of the pieces before."""
    found, caches, start = [], None, 0
    with paddle.no_grad():
        for count in steps:
            logits, caches = network(paddle.to_tensor(given[:, start : start + count]), caches)
            found.append(logits.numpy())
            start += count
    return found


@pytest.mark.parametrize("steps", [[1] * 12, [5, 1, 1, 5], [11, 1]])
def test_steps_with_caches_are_the_whole_sequence(steps):
    network, given = decoder(), tokens(12)
    (whole,) = logits_by_steps(network, given, [12])
    np.testing.assert_allclose(logits_by_steps(network, given, steps)[-1], whole, 1e-4, 1e-5)


def test_the_attention_is_that_of_repeated_heads():
    network, given = decoder(), tokens(9)
    repeated = decoder(SMALL._replace(key_value_heads=SMALL.heads))
    state, shared = network.state_dict(), SMALL.heads // SMALL.key_value_heads
    for name in [name for name in state if ".key." in name or ".value." in name]:
        heads = state[name].reshape([SMALL.width, SMALL.key_value_heads, SMALL.head_size])
        state[name] = heads.repeat_interleave(shared, axis=1).reshape([SMALL.width, -1])
    repeated.set_state_dict(state)
    found, expected = (logits_by_steps(each, given, [9])[0] for each in (network, repeated))
    np.testing.assert_allclose(found, expected, 1e-4, 1e-5)


def test_more_tokens_than_positions_are_refused():
    network = decoder()
    with pytest.raises(ValueError, match="41 tokens are more than the model's 40"):
        logits_by_steps(network, tokens(41), [30, 11])


@pytest.mark.usefixtures("small_intervals_pay")
def test_the_engine_scores_as_paddle():
    network, given, steps = decoder(), tokens(20), [6] + [1] * 14
    expected = logits_by_steps(network, given, steps)
    compiled = paddle_ngraph.compile(network)
    for _ in range(3):
        before = paddle_ngraph.stats()["engine_runs"]
        found = logits_by_steps(compiled, given, steps)
        np.testing.assert_allclose(found, expected, 1e-4, 1e-5)
    assert paddle_ngraph.stats()["engine_runs"] >= before + len(steps) - 2


@pytest.fixture
def chat():
    """The demo, where the readers of GGUF files are installed (make chat)."""
    pytest.importorskip("gguf")
    pytest.importorskip("tokenizers")
    from demos.chat_demo import chat

    return chat


def write_model(path: Path, network: Decoder) -> None:
    """Writes a GGUF file of a network, with a tokenizer of bytes."""
    import gguf
    from tokenizers import pre_tokenizers

    shape, writer = network.shape, gguf.GGUFWriter(path, "llama")
    writer.add_block_count(shape.layers)
    writer.add_embedding_length(shape.width)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.key_value_heads)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_context_length(shape.longest)
    writer.add_rope_freq_base(shape.rotary_base)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_tokenizer_model("gpt2")
    marks = ["<|im_start|>", "<|im_end|>"]
    texts = [*marks, "ab", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    texts += [f"unused{number}" for number in range(shape.vocabulary - len(texts))]
    writer.add_token_list(texts)
    writer.add_token_types([3] * len(marks) + [1] * (len(texts) - len(marks)))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(1)
    from demos.chat_demo.model_file import _IN_LAYER

    layer_names = {theirs: name for name, theirs in _IN_LAYER.items()}
    outside = {"embedding.weight": "token_embd", "norm.weight": "output_norm"}
    for name, parameter in network.named_parameters():
        values = parameter.numpy()
        if name in outside:
            theirs = outside[name]
        else:
            _, layer, *inside, _ = name.split(".")
            theirs = f"blk.{layer}.{layer_names['.'.join(inside)]}"
            if values.ndim == 2:
                values = values.T
            if theirs.endswith(("attn_q", "attn_k")):
                pairs = values.reshape(-1, 2, shape.head_size // 2, shape.width).swapaxes(1, 2)
                values = pairs.reshape(-1, shape.width)
        writer.add_tensor(f"{theirs}.weight", np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_model_file_is_its_network(chat, tmp_path):
    from demos.chat_demo.model_file import ModelFile

    network = decoder()
    write_model(tmp_path / "model.gguf", network)
    file = ModelFile(tmp_path / "model.gguf")
    assert file.shape == pytest.approx(network.shape)
    assert file.end_token == 1
    given = tokens(7)
    found, expected = (logits_by_steps(n, given, [7]) for n in (file.network(), network))
    np.testing.assert_allclose(found, expected, 1e-6, 1e-7)
    tokenizer = file.tokenizer()
    text = "A b\u00e9 12<|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    assert tokenizer.encode(text).ids[-1] == 1


def test_both_engines_answer(chat, tmp_path, capfd):
    longer = SMALL._replace(longest=400)
    write_model(tmp_path / "model.gguf", decoder(longer))
    command = ["Who?", "--model", str(tmp_path / "model.gguf"), "--tokens", "12"]
    assert chat.main(command) == 0, capfd.readouterr().err
    printed = capfd.readouterr().out
    assert "largest difference of a logit" in printed
    assert "[ngraph] engine runs: " in printed


def test_a_wrong_answer_is_found(chat):
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(4, 9)).astype("float32")
    native = chat.Answer(logits.argmax(axis=1), logits, np.ones(4), 1.0, 1.0)
    wrong = logits.copy()
    wrong[2] = wrong[2][::-1]
    chat.check_agreement(native, native)
    with pytest.raises(DemoError, match="more than rounding"):
        chat.check_agreement(native, chat.Answer(wrong.argmax(axis=1), wrong, np.ones(4), 1.0, 1.0))


@pytest.mark.parametrize("contents", [b"", b"GGUF", b"PK" * 100])
def test_a_damaged_file_is_named(chat, tmp_path, contents, capfd):
    path = tmp_path / "model.gguf"
    path.write_bytes(contents)
    assert chat.main(["Who?", "--model", str(path), "--engine", "native"]) == 1
    assert str(path) in capfd.readouterr().err
