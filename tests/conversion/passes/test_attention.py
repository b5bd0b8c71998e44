"""Attention of one position to many, in the forms in which it is written, becomes one node."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import openvino as ov
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openvino import opset15

from paddle_ngraph.conversion.extensions import extension
from paddle_ngraph.conversion.openvino_core import core
from paddle_ngraph.conversion.passes.attention import fuse_attention
from tests.fuzz.strategy import the_same_examples

# On the calling thread; by default the plugin computes in bfloat16 where the processor can.
CONFIGURATION = {"NUM_STREAMS": 0, "INFERENCE_PRECISION_HINT": "f32"}


@dataclass(frozen=True)
class Form:
    """A way to write attention.

    Attributes:
        batch: The sizes before the positions: of samples and heads, or of both together.
        groups: The number of heads of keys and values; they are repeated if there are fewer.
        repeats: The node that repeats them.
        width, value_width: The number of elements of a key, and of a value.
        scale: How scores are scaled: by no node, before or behind the product.
        factor: The factor of the scores.
        factor_rank: The number of axes of the constant with the factor.
        num_factors: How many times the scores are scaled.
        mask: The sizes of a mask before its last one; ``None``: there is no mask.
        transposes: Whether a node transposes the keys.
        is_mask_first: Whether the mask is the first operand of the sum.
        queries, num_keys: The positions of queries and of keys; -1: any number.
    """

    batch: tuple[int, ...] = (2, 4)
    groups: int = 4
    repeats: str = "Broadcast"
    width: int = 20
    value_width: int = 20
    scale: str = "Multiply"
    factor: float = 0.25
    factor_rank: int = 0
    num_factors: int = 1
    mask: tuple[int, ...] | None = None
    transposes: bool = False
    is_mask_first: bool = False
    queries: int = 1
    num_keys: int = -1

    @property
    def shared(self) -> tuple[int, ...]:
        """The sizes of keys and values before their positions."""
        return (*self.batch[:-1], self.groups)

    def model(self, is_read_twice: bool = False) -> ov.Model:
        """The model, with a dynamic number of keys."""
        rank = len(self.batch) + 2
        q = opset15.parameter([*self.batch, self.queries, self.width], np.float32)
        k = opset15.parameter([*self.shared, self.num_keys, self.width], np.float32)
        v = opset15.parameter([*self.shared, -1, self.value_width], np.float32)
        inputs, query = [q, k, v], q
        if self.scale == "before":
            query = opset15.multiply(q, np.float32(self.factor))
        keys, values = self._repeated(k), self._repeated(v)
        if self.transposes:
            order = np.array([*range(rank - 2), rank - 1, rank - 2])
            keys = opset15.transpose(keys, order)
        scores = opset15.matmul(query, keys, False, not self.transposes)
        for _ in range(self.num_factors):
            if self.scale == "Multiply":
                scores = opset15.multiply(scores, self._constant(self.factor))
            if self.scale == "Divide":
                scores = opset15.divide(scores, self._constant(1 / self.factor))
        if self.mask is not None:
            mask = opset15.parameter([*self.mask, -1], np.float32)
            inputs.append(mask)
            scores = opset15.add(*((mask, scores) if self.is_mask_first else (scores, mask)))
        weights = extension("RowSoftmax", [scores])
        results = [opset15.matmul(weights, values, False, False)]
        if is_read_twice:
            results.append(opset15.relu(weights))
        return ov.Model(results, inputs, "attention")

    def _constant(self, factor: float) -> np.ndarray:
        return np.full([1] * self.factor_rank, factor, "float32")

    def _repeated(self, x: ov.Node) -> ov.Node:
        times = self.batch[-1] // self.groups
        if times == 1:
            return x
        width = x.get_output_partial_shape(0)[-1].get_length()
        single = opset15.unsqueeze(x, np.array([len(self.batch)]))
        ones = [1] * len(self.batch)
        if self.repeats == "Tile":
            wide = opset15.tile(single, np.array([*ones, times, 1, 1]))
        else:
            target = np.array([*ones, times, 1, 1])
            wide = opset15.broadcast(single, target, broadcast_spec="BIDIRECTIONAL")
        target = np.array([*self.batch, -1, width])
        return opset15.reshape(wide, target, special_zero=False)

    def arrays(self, length: int) -> list[np.ndarray]:
        random = np.random.default_rng(length)
        shapes = [
            (*self.batch, self.queries, self.width),
            (*self.shared, length, self.width),
            (*self.shared, length, self.value_width),
        ]
        found = [random.standard_normal(shape).astype("float32") for shape in shapes]
        if self.mask is not None:
            hidden = random.random((*self.mask, length)) < 0.4
            hidden[..., 0] = False
            low = random.choice([-np.inf, -1e9])
            found.append(np.where(hidden, np.float32(low), np.float32(0)))
        return found


def types_of(model: ov.Model) -> list[str]:
    return [node.get_type_name() for node in model.get_ops()]


def check_equal(form: Form, is_fused: bool = True) -> None:
    plain, fused = form.model(), form.model()
    fuse_attention(fused, extension)
    assert ("Attention" in types_of(fused)) == is_fused
    if is_fused:
        assert not {"MatMul", "RowSoftmax", "Broadcast", "Tile"} & set(types_of(fused))
    compiled = [core().compile_model(model, "CPU", CONFIGURATION) for model in (plain, fused)]
    for length in (2, 7, 8, 33):
        arrays = form.arrays(length)
        expected, found = (each(arrays)[0] for each in compiled)
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


BATCHES = ((1, 4), (2, 4), (6,), (2, 2, 4))


@st.composite
def forms(draw: st.DrawFn) -> Form:
    batch = draw(st.sampled_from(BATCHES))
    heads = batch[-1]
    masks = [None, (), (1,) * (len(batch) + 1), (*batch, 1)]
    if len(batch) > 1:
        masks.append((batch[0], *(1,) * len(batch)))
    return Form(
        batch=batch,
        groups=draw(st.sampled_from([each for each in (1, 2, 3, heads) if heads % each == 0])),
        repeats=draw(st.sampled_from(["Broadcast", "Tile"])),
        width=draw(st.integers(1, 70)),
        value_width=draw(st.integers(1, 70)),
        scale=draw(st.sampled_from(["none", "before", "Multiply", "Divide"])),
        mask=draw(st.sampled_from(masks)),
        transposes=draw(st.booleans()),
        is_mask_first=draw(st.booleans()),
    )


@the_same_examples(25)
@given(forms())
def test_forms(form):
    check_equal(form)


@st.composite
def broadcasting_forms(draw: st.DrawFn) -> Form:
    """Forms whose mask or factor may give the scores another batch, or another rank."""
    batch = draw(st.sampled_from([(1, 1), (1, 4), (2, 4), (3,)]))
    wider = draw(st.integers(0, 2))
    sizes = [*[2] * wider, *(3 if size == 1 else size for size in batch), 1]
    kept = [draw(st.booleans()) for _ in sizes]
    mask = tuple(size if keeps else 1 for size, keeps in zip(sizes, kept))
    return Form(
        batch=batch,
        groups=batch[-1],
        mask=draw(st.sampled_from([None, mask])),
        factor_rank=draw(st.integers(0, len(batch) + 3)),
    )


@the_same_examples(25)
@given(broadcasting_forms())
def test_scores_that_are_broadcast_stay(form):
    own = (*form.batch, 1, 1)
    ones = (1,) * form.factor_rank
    if np.broadcast_shapes(own, (*(form.mask or ()), 1), ones) != own:
        check_equal(form, is_fused=False)
    else:
        plain, fused = form.model(), form.model()
        fuse_attention(fused, extension)
        assert fused.outputs[0].get_partial_shape() == plain.outputs[0].get_partial_shape()


@pytest.mark.parametrize(
    "form",
    [
        Form(queries=2),
        Form(mask=(4, 1)),
        Form(mask=(2, 4, 2), queries=2),
        Form(mask=(), num_keys=1),
        Form(num_factors=2),
        Form(factor=1e-40),
        Form(factor=1e39, scale="Divide"),
    ],
    ids=[
        "two positions",
        "a mask for each head",
        "a mask for each position",
        "one key for all",
        "two factors, whose product may be no float32",
        "a subnormal factor",
        "a subnormal divisor",
    ],
)
def test_other_forms_stay(form):
    model = form.model()
    before = types_of(model)
    fuse_attention(model, extension)
    assert types_of(model) == before


def test_weights_that_are_read_stay():
    model = Form().model(is_read_twice=True)
    fuse_attention(model, extension)
    assert "Attention" not in types_of(model)


def test_hidden_rows_are_nan_or_uniform():
    """As softmax: a row of nothing but -inf is NaN unless its length is a multiple of 8."""
    form = Form(batch=(1, 1), groups=1, mask=())
    model = form.model()
    fuse_attention(model, extension)
    compiled = core().compile_model(model, "CPU", CONFIGURATION)
    for length in (7, 8):
        q, k, v, mask = form.arrays(length)
        (found,) = compiled([q, k, v, np.full_like(mask, -np.inf)]).values()
        if length == 7:
            assert np.isnan(found).all()
        else:
            np.testing.assert_allclose(found[0, 0, 0], v[0, 0].mean(0), rtol=1e-5, atol=1e-6)
