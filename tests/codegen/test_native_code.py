"""Generated projects: built with cmake, and run without Python and Paddle."""

from __future__ import annotations

import ctypes
import json
import re
import textwrap
from pathlib import Path, PurePath

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from benchmarks import native
from benchmarks.worker import PeerError
from demos import datasets, networks
from demos.native_demo import train
from demos.ocr_demo import files
from paddle_ngraph import NgraphError
from paddle_ngraph.__main__ import main as command_line
from paddle_ngraph.codegen import project, toolchain
from paddle_ngraph.transpiler import generate_native
from tests.codegen import native_project
from tests.codegen.native_project import Library, Project, called
from tests.frontends import test_ngraph_transpiler as transpiled
from tests.frontends.executor.test_hook import save_model
from tests.programs import Program, chain, floats, linear_regression, parameter
from tests.zips import zip_equal

# The runtime of all projects takes a minute to compile.
pytestmark = pytest.mark.slow("builds C++ projects")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def libraries(request):
    return native_project.libraries(request.config.cache)


@pytest.fixture
def make(libraries, tmp_path):
    """Generates and builds a project of a program."""

    def make(build, *targets, name="project", **options):
        return Project(Program(build), tmp_path / name, libraries, **options).build(*targets)

    return make


def assert_close(found, expected):
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


# -- programs --------------------------------------------------------------------------------------


def convolutions():
    """For images of any size and number; a result that is a feed, and labels."""
    x = paddle.static.data("x", [-1, 3, -1, -1], "float32")
    norm = nn.BatchNorm2D(8)
    norm.eval()
    maps = nn.Conv2D(8, 4, 3, padding=1)(F.relu(norm(nn.Conv2D(3, 8, 3, stride=2)(x))))
    out = nn.Linear(4, 5)(paddle.mean(maps, axis=[2, 3]))
    return [F.softmax(out), paddle.argmax(out, axis=1), x]


def perceptron():
    x = paddle.static.data("x", [-1, 4], "float32")
    return nn.Linear(64, 3)(F.relu(nn.Linear(4, 64)(x)))


# -- inference -------------------------------------------------------------------------------------


def test_results_are_those_of_paddle(make):
    made = make(chain)
    for rows in (1, 2, 7):
        x = floats(rows, 4, seed=rows)
        assert_close(made.run(x=x), made.program.run(engine=False, x=x))


def test_sizes_stay_open(make):
    """Sizes that the program leaves open, in any combination, with one compiled model for them."""
    made = make(convolutions)
    for shape in ((1, 3, 32, 32), (2, 3, 33, 47), (5, 3, 64, 20)):
        x = floats(*shape)
        assert_close(made.run(x=x), made.program.run(engine=False, x=x))
    assert len(list((made.folder / "model" / "functions").glob("*.xml"))) == 2


def test_only_the_shapes_that_are_given(make):
    made = make(chain, shapes=[{"x": [3, 4]}, {"x": [5, 4]}])
    for rows in (3, 5):
        assert_close(made.run(x=floats(rows, 4)), made.program.run(engine=False, x=floats(rows, 4)))
    refused = made.main(*made.inputs(x=floats(4, 4)), status=2).stderr
    assert "was not generated for inputs of the shapes [4, 4]" in refused


def test_raw_files(make):
    made = make(chain)
    x = floats(3, 4)
    raw = made.folder / "x.raw"
    raw.write_bytes(x.tobytes())
    printed = made.main("--input", f"x={raw}", "--shape", "x=3x4").stdout
    assert printed.startswith("result_0: float32 [3, 4]: ")
    first = [float(word) for word in printed.partition("]: ")[2].split()[:8]]
    np.testing.assert_allclose(first, made.program.run(x=x)[0].ravel()[:8], rtol=1e-5)
    assert "give --shape x=" in made.main("--input", f"x={raw}", status=2).stderr
    wrong = made.main("--input", f"x={raw}", "--shape", "x=2x4", status=2).stderr
    assert "has 48 bytes, and float32 [2, 4] has 32" in wrong


def test_it_needs_neither_python_nor_paddle(make):
    made = make(chain)
    linked = called("ldd", made.folder / "build" / "main").stdout
    assert "libopenvino" in linked and "libdnnl" in linked
    names = [line.split()[0] for line in linked.splitlines()]
    assert not [name for name in names if re.search("python|libpaddle|libphi", name)]
    assert not (made.folder / "phi").exists() and not (made.folder / "kernels.cc").exists()


def test_equal_constants_are_there_once(make):
    made = make(perceptron)
    functions = list((made.folder / "model" / "functions").glob("*.xml"))
    assert len(functions) == 2
    sizes = [int(size) for f in functions for size in re.findall(r'size="(\d+)"', f.read_text())]
    stored = (made.folder / "model" / "functions" / "constants.bin").stat().st_size
    assert stored < 0.6 * sum(sizes)


def names_of_any_kind():
    """Names that mean something to C++, to files or to a command line, in a loop and a branch."""
    x = paddle.static.data('a=\U0001f600 ??/ "q" \\ é', [-1, 4], "float32")
    trunk = paddle.static.data("trunk", [1], "int64")
    hidden = x
    for name in ("NULL", "errno", "INT64_MAX", "w??/\n%", "NGRAPH_LIBRARY", "Tensor", "a__b", "v"):
        hidden = hidden * paddle.static.create_parameter([4], "float32", name=name)
    _, hidden = paddle.static.nn.while_loop(
        lambda number, _: number < 5,
        lambda number, hidden: [number + trunk, hidden * 0.5],
        [paddle.zeros([1], "int64"), hidden],
    )
    twice = paddle.static.nn.cond(paddle.sum(x) < 1e9, lambda: trunk + trunk, lambda: trunk * trunk)
    return [hidden, twice, hidden]


def test_names_of_any_kind(make):
    made = make(names_of_any_kind)
    feed = {'a=\U0001f600 ??/ "q" \\ é': floats(3, 4), "trunk": np.array([2])}
    words = ["--output", made.folder / "new" / "results"]
    for number, (name, array) in enumerate(feed.items()):
        np.save(made.folder / f"{number}=.npy", array)
        words += ["--input", f"{name}={made.folder / str(number)}=.npy"]
    made.main(*words)
    files = sorted((made.folder / "new" / "results").iterdir())
    assert_close([np.load(file) for file in files], made.program.run(engine=False, **feed))


# -- Paddle's kernels ------------------------------------------------------------------------------


def counted():
    """Contents decide sizes, between intervals: one row for each element that is not zero."""
    x = paddle.static.data("x", [10, 4], "float32")
    hidden = F.relu(nn.Linear(4, 6)(x))
    places = paddle.nonzero(hidden > 0.3)
    chosen = paddle.masked_select(hidden, hidden > 0.3)
    rows = paddle.gather(hidden, places[:, 0]) * chosen.unsqueeze(1)
    return [places, chosen, paddle.sum(F.sigmoid(nn.Linear(6, 3)(rows)), axis=0)]


def selected():
    """Twice the elements that one mask selects, of dynamic sizes."""
    x = paddle.static.data("x", [-1, 4], "float32")
    hidden = F.relu(nn.Linear(4, 6)(x))
    mask = hidden > 0.3
    first, second = (paddle.masked_select(each, mask) for each in (hidden, F.sigmoid(hidden)))
    return [first, paddle.nonzero(mask), F.softmax(first * second + 1.0, axis=0)]


def in_doubles():
    """The engine computes with 32 bits; lists, absent operands and attributes in between.

    One operator overwrites the members of a list.
    """
    x = paddle.static.data("x", [-1, 4], "float32")
    wide = (nn.Linear(4, 6)(x) * 2.0).astype("float64")
    first, second = paddle.split(wide, [2, 4], axis=1)
    scale = paddle.full([1], 4.0, "float64")
    paddle._C_ops.check_finite_and_unscale_([first, second], scale)
    joined = paddle.concat([second, first * 1e-9 + 1.0, paddle.clip(second, -0.5, 0.25)], axis=1)
    product = paddle.matmul(joined, joined, transpose_y=True)
    return [product, F.gelu(paddle.mean(product, axis=1).astype("float32")) + 1.0]


def detected():
    """The final operators of a detector."""
    x = paddle.static.data("x", [1, 8, 4], "float32")
    boxes = paddle.concat([x[:, :, :2], x[:, :, :2] + F.relu(x[:, :, 2:]) + 0.5], axis=2)
    scores = F.softmax(paddle.transpose(x, [0, 2, 1]), axis=1)
    made = paddle._C_ops.multiclass_nms3(boxes, scores, None, 0.05, 10, 10, 0.4, True, 1.0, -1)
    return [made[0], made[2], paddle.sum(F.relu(made[0]) * 2.0, axis=1)]


def of_many_kinds():
    """Attributes and operands of every kind that kernels have."""
    x = paddle.static.data("x", [6, 6], "float32")
    i = paddle.static.data("i", [6], "int64") % 6
    wide = x.astype("float64")
    image = wide.reshape([1, 1, 6, 6])
    definite = paddle.matmul(wide, wide, transpose_y=True) + paddle.eye(6, dtype="float64")
    boxes = paddle.concat([paddle.abs(x[:2, :2]), paddle.abs(x[:2, 2:4]) + 3.0], axis=1)
    return [
        paddle.cumsum(wide, axis=1),
        *paddle.topk(wide, 3),
        paddle.linalg.cholesky(definite),
        paddle.linalg.solve(definite, wide),
        paddle.linalg.slogdet(definite),
        paddle.unique_consecutive(i % 3),
        paddle.scatter(wide, i, wide * 3),
        paddle.put_along_axis(wide, i.reshape([6, 1]), wide[:, :1], 1),
        paddle.roll(wide, 2, 1),
        paddle.histogram(x, 5, -1.0, 1.0),
        paddle.bincount(i, minlength=8),
        *paddle.split(wide, 3, 1),
        *paddle.meshgrid(wide[0], wide[1]),
        paddle.multiplex([wide, wide * 2], (i % 2).astype("int32").reshape([6, 1])),
        paddle.tile(wide, [2, 1]),
        F.pad(image, [1, 2, 3, 0], value=7.0),
        F.interpolate(image, size=[9, 11], mode="bilinear"),
        F.conv2d(image, wide[:3, :3].reshape([1, 1, 3, 3]), padding=1),
        F.max_pool2d(image, 2),
        F.layer_norm(wide, [6]),
        F.cross_entropy(wide, i.reshape([6, 1])),
        paddle.masked_fill(wide, wide > 0, 0.5),
        paddle.index_put(wide, [i, i], wide[0], accumulate=True),
        paddle.allclose(wide, wide + 1e-12),
        paddle.strided_slice(wide, [0, 1], [0, 1], [6, 6], [2, 2]),
        paddle.vision.ops.roi_align(
            image.astype("float32"), boxes, paddle.full([1], 2, "int32"), 2
        ),
        F.gather_tree((i % 3).reshape([3, 2, 1]), (i % 1).reshape([3, 2, 1])),
        paddle.linalg.lu(definite)[0],
    ]


def in_64_bits():
    """Sizes that the runtime's own arithmetic does not join."""
    column = paddle.static.data("column", [3, 1], "int64")
    return column * paddle.static.data("row", [1, 4], "int64")


def sorted_out():
    x = paddle.static.data("x", [-1], "int64")
    values, index, counts = paddle.unique(x % 5, return_index=True, return_counts=True)
    return [values, index, paddle.sum(F.relu(counts.astype("float32") - 1.0))]


def in_a_loop():
    """A kernel in a block that a loop calls, which overwrites a loop-carried value."""
    x = paddle.static.data("x", [-1, 4], "float32")

    def body(number, hidden):
        return [number + 1, paddle.erfinv(F.softmax(hidden) * 0.5) + hidden]

    _, hidden = paddle.static.nn.while_loop(
        lambda number, _: number < 3, body, [paddle.zeros([1], "int64"), x * 1.0]
    )
    return hidden


def integers(*shape):
    return np.random.default_rng(0).integers(0, 2**40, shape)


@pytest.mark.parametrize(
    ("build", "feeds"),
    [
        (native_project.in_two_intervals, [{"x": floats(rows, 4)} for rows in (1, 3)]),
        (selected, [{"x": floats(rows, 4, seed=rows)} for rows in (2, 5, 30)]),
        (counted, [{"x": floats(10, 4, seed=seed)} for seed in range(3)]),
        (in_doubles, [{"x": floats(rows, 4)} for rows in (1, 7)]),
        (of_many_kinds, [{"x": floats(6, 6), "i": integers(6)}]),
        (detected, [{"x": floats(1, 8, 4)}]),
        (in_64_bits, [{"column": integers(3, 1), "row": integers(1, 4)}]),
        (sorted_out, [{"x": integers(size)} for size in (3, 40)]),
        (in_a_loop, [{"x": floats(5, 4)}]),
    ],
)
def test_kernels_of_paddle_between_intervals(build, feeds, make):
    made = make(build)
    assert "kernels::" in (made.folder / "main.cc").read_text()
    for feed in feeds:
        assert_close(made.run(**feed), made.program.run(engine=False, **feed))
    linked = called("ldd", made.folder / "build" / "main").stdout
    assert "libphi_core.so" in linked
    assert not re.search(r"libpython|libpaddle", linked)


def test_a_library_with_kernels_meets_paddle(make):
    """Both have PHI in one process; the array fed to an overwritten variable is unchanged."""

    def overwriting():
        x = paddle.static.data("x", [-1, 4], "float64")
        paddle.assign(paddle.erfinv(x * 0.5), x)
        return [x, x.astype("float32") + 1.0]

    made = make(overwriting, "ngraph_model")
    functions = Library(made.folder / "build" / "libngraph_model.so")
    model = functions.open(made.folder / "model")
    for rows in (1, 3):
        x = floats(rows, 4).astype("float64")
        given = x.copy()
        found = functions.run(model, x)
        np.testing.assert_array_equal(x, given)
        assert_close(found, made.program.run(engine=False, x=given.copy()))
    with pytest.raises(ValueError, match="x is float64"):
        functions.run(model, floats(3, 4))
    functions.close(model)


def training_through_kernels():
    """A native operator and its gradient between intervals, and a variable in 64 bits."""
    x = paddle.static.data("x", [5, 4], "float32")
    hidden = paddle.erfinv(F.tanh(nn.Linear(4, 8)(x)) * 0.5)
    wide = paddle.mean(paddle.sum(F.relu(hidden).astype("float64"), axis=1) ** 2)
    loss = wide.astype("float32")
    paddle.optimizer.Momentum(0.05, 0.9).minimize(loss)
    mean = paddle.static.create_parameter([1], "float64", name="mean")
    mean.stop_gradient = True
    paddle.assign(mean * 0.9 + wide.detach() * 0.1, mean)
    return loss


def test_training_through_kernels_of_paddle(make, tmp_path):
    made = make(training_through_kernels)
    data = {"x": floats(STEPS, 5, 4)}
    found = made.train("--save", tmp_path / "saved", **in_rows(data))
    np.testing.assert_allclose(found, natively_trained(made.program, **data), rtol=1e-5)
    assert len(set(found)) == STEPS
    saved = np.load(tmp_path / "saved" / "mean.npy")
    assert saved.dtype == np.float64
    np.testing.assert_allclose(saved, made.program.variable("mean"), rtol=1e-6)


# -- integers --------------------------------------------------------------------------------------


def doubled(x):
    def body(i, n):
        return [i + 1, n * 2 + x]

    return paddle.static.nn.while_loop(lambda i, _: i < 3, body, [paddle.zeros([1], "int64"), x])[1]


def squared_if_positive(x):
    return paddle.static.nn.cond(
        paddle.sum(x.astype("float32")) > 0.0, lambda: x * x, lambda: x - 1
    )


# Functions of x, and values of x for which they overflow int32.
OF_32_BITS = {
    "add": (lambda x: x + x, [2**31 - 1, -(2**31)]),
    "subtract": (lambda x: x - paddle.full([1], 7, "int64"), [-(2**31)]),
    "multiply": (lambda x: x * x % 5, [2**31 - 1, 46341]),
    "scale": (lambda x: x * 3, [2**31 - 1]),
    "abs": (paddle.abs, [-(2**31)]),
    "while": (doubled, [2**31 - 1, 10**9]),
    "if": (squared_if_positive, [2**31 - 1]),
}
OF_FLOATS = [3e9, -1e30, np.nan, np.inf]
OF_64_BITS = {"fed_if": squared_if_positive, "fed_while": doubled}
TABLE = np.arange(18, dtype="float32").reshape(9, 2)


def integer_program():
    made = []
    for name, (build, _) in OF_32_BITS.items():
        made.append(build(paddle.static.data(name, [-1], "int32").astype("int64")))
    made.append(paddle.floor(paddle.static.data("cast", [-1], "float32")).astype("int64"))
    for name, build in OF_64_BITS.items():
        made.append(build(paddle.static.data(name, [-1], "int64")))
    ids = paddle.static.data("ids", [-1], "int64")
    table = nn.initializer.Assign(TABLE)
    table = paddle.static.create_parameter([9, 2], "float32", default_initializer=table)
    return [*made, F.embedding(ids, table), paddle.gather(table, ids)]


def integers_and_a_sum():
    """The sum outlives runs."""
    made = integer_program()
    x = paddle.static.data("summand", [4], "int64")
    total = paddle.static.create_parameter(
        [4], "int64", name="total", default_initializer=nn.initializer.Constant(0)
    )
    total.stop_gradient = True
    paddle.assign(total + x, total)
    return [*made, total * 1]


def small_numbers(functions, model):
    """A feed of small values for each input."""
    return {name: np.arange(4).astype(dtype) for name, dtype, _ in functions.inputs(model)}


def random_feeds(small, seed):
    """Values of up to 33 bits, and indices within the table; runs differ in both, and in size."""
    random = np.random.default_rng(seed)
    most = 2.0 ** random.integers(2, 34)
    size = random.integers(1, 7)
    arrays = {name: random.uniform(-most, most, 4 if name == "summand" else size) for name in small}
    arrays["ids"] = random.integers(0, len(TABLE), size)
    least, end = -(2.0**31), 2.0**31 - 1
    return {
        name: (np.clip(arrays[name], least, end) if each.dtype == "int32" else arrays[name]).astype(
            each.dtype
        )
        for name, each in small.items()
    }


def assert_same(found, expected):
    for ours, theirs in zip_equal(found, expected):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def test_integers_that_overflow_32_bits(make):
    """A run reports the overflow with its operator, and never continues with wrapped integers."""
    made = make(integer_program, "ngraph_model")
    text = (made.folder / "main.cc").read_text()
    assert text.count("run.interval(") == 1 and "kernels::" not in text
    functions = Library(made.folder / "build" / "libngraph_model.so")
    model = functions.open(made.folder / "model")
    small = small_numbers(functions, model)

    def is_right(feed):
        found = functions.run(model, *feed.values())
        assert_same(found, made.program.run(engine=False, **feed))

    def refuses(name, number, reason):
        wrong = np.array([1, 2, number, 3], small[name].dtype)
        with pytest.raises(ValueError, match=reason):
            functions.run(model, *{**small, name: wrong}.values())

    is_right(small)
    where = {"while": "(scale|add)", "if": "multiply"}
    words = ": a whole number needs 64 bits in this run. A project that .* --wide-integers .* 64$"
    for name, (_, numbers) in OF_32_BITS.items():
        for number in numbers:
            refuses(name, number, rf"^pd_op.{where.get(name, name)} \(operator \d+\){words}")
    for number in OF_FLOATS:
        refuses("cast", number, rf"^pd_op.cast \(operator \d+\){words}")
    for name in (*OF_64_BITS, "ids"):
        for number in (2**40, -(2**32)):
            refuses(name, number, f"^{name} holds {number}, .* --wide-integers .* only positions")
    for number in (9, -1, -(2**31)):
        reason = f"input 'x' is out of range. Expected 0 <= value < 9, but got {number}"
        refuses("ids", number, rf"^pd_op.embedding \(operator \d+\): {reason}")
    refused = 0
    for seed in range(60):
        try:
            is_right(random_feeds(small, seed))
        except ValueError as error:
            refused += "--wide-integers" in str(error)
    assert 20 < refused < 50
    is_right(small)
    functions.close(model)


def test_integers_of_64_bits(make):
    """If integers fall back to Paddle, every run is right, except for indices out of range."""
    made = make(integers_and_a_sum, "ngraph_model", wide_integers=True)
    functions = Library(made.folder / "build" / "libngraph_model.so")
    model = functions.open(made.folder / "model")
    small = small_numbers(functions, model)
    numbers = {name: numbers for name, (_, numbers) in OF_32_BITS.items()}
    numbers |= {name: [2**40, -(2**40)] for name in (*OF_64_BITS, "summand")}
    numbers |= {"cast": OF_FLOATS, "ids": [8]}
    feeds = []
    for name, of_name in numbers.items():
        for number in of_name:
            feeds.append({**small, name: np.array([1, 2, number, 3], small[name].dtype)})
    for feed in [*feeds, *(random_feeds(small, seed) for seed in range(60))]:
        found = functions.run(model, *feed.values())
        assert_same(found, made.program.run(engine=False, **feed))
    for number in (9, 2**40):
        with pytest.raises(ValueError, match=r"ids holds|out of range"):
            functions.run(model, *{**small, "ids": np.array([1, 2, number, 3])}.values())
    functions.close(model)


def test_sizes_that_need_64_bits(tmp_path, capsys):
    def build():
        x = paddle.static.data("x", [-1, -1], "bool")
        height, width = paddle.shape(x)
        return height * width + 1

    prefix, out = save_model(tmp_path, build), tmp_path / "out"
    words = ["codegen", prefix, "-o", str(out), "--shapes", "x=65536x65536"]
    assert command_line(words) == 2
    assert (
        "a whole number needs 64 bits in this run; give --wide-integers" in capsys.readouterr().err
    )
    assert not out.exists()
    assert command_line([*words, "--wide-integers"]) == 0
    assert "native::multiply" in (out / "main.cc").read_text()


# -- training --------------------------------------------------------------------------------------


STEPS = 6


def natively_trained(program, **data):
    """The losses of Paddle, a batch in each step."""
    steps = len(next(iter(data.values())))
    feeds = [{name: array[step] for name, array in data.items()} for step in range(steps)]
    return [float(np.ravel(program.run(engine=False, **feed)[0])[0]) for feed in feeds]


def in_rows(data):
    """Batches [steps, rows, ...] as the rows of a file."""
    return {name: array.reshape(-1, *array.shape[2:]) for name, array in data.items()}


def lenet():
    """A step of the MNIST network."""
    image = paddle.static.data("image", [-1, 1, 28, 28], "float32")
    label = paddle.static.data("label", [-1, 1], "int64")
    loss = F.cross_entropy(networks.lenet(image), label)
    paddle.optimizer.Momentum(0.05, 0.9).minimize(loss)
    return loss


def digits(rows):
    generator = np.random.default_rng(0)
    image = generator.random((STEPS, rows, 1, 28, 28), dtype="float32")
    return {"image": image, "label": generator.integers(0, 10, (STEPS, rows, 1))}


def normalized():
    """Batch normalization, clipping and Adam, whose states have odd names."""
    x = paddle.static.data("x", [8, 3, 9, 9], "float32")
    conv = nn.Conv2D(3, 8, 3, weight_attr="a/b", bias_attr=False)
    maps = F.relu(nn.BatchNorm2D(8)(conv(x)))
    loss = paddle.mean(nn.Linear(8, 1)(paddle.mean(maps, axis=[2, 3])) ** 2)
    paddle.optimizer.Adam(0.05, grad_clip=nn.ClipGradByGlobalNorm(0.5)).minimize(loss)
    return loss


def scheduled():
    x = paddle.static.data("x", [-1, 4], "float32")
    loss = paddle.mean(nn.Linear(4, 3)(x) ** 2)
    paddle.optimizer.SGD(paddle.optimizer.lr.StepDecay(0.5, 2)).minimize(loss)
    return loss


def test_fit_a_line(make, tmp_path):
    made = make(linear_regression)
    x = floats(STEPS, 5, 4)
    data = {"x": x, "y": x.sum(2, keepdims=True) + floats(STEPS, 5, 1, seed=1)}
    found = made.train("--batch", 5, "--epochs", 2, "--save", tmp_path / "once", **in_rows(data))
    twice = {name: np.concatenate([array, array]) for name, array in data.items()}
    expected = natively_trained(made.program, **twice)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert found[-1] < 0.5 * found[0]
    halves = []
    for options in (["--save", tmp_path / "half"], ["--load", tmp_path / "half"]):
        halves += made.train("--batch", 5, *options, **in_rows(data))
    assert halves == found


@pytest.mark.parametrize("processor", ["any", "native"])
def test_mnist(processor, make):
    made = make(lenet, processor=processor, shapes={"image": [16, 1, 28, 28], "label": [16, 1]})
    data = digits(16)
    found = made.train("--batch", 16, **in_rows(data))
    np.testing.assert_allclose(found, natively_trained(made.program, **data), rtol=2e-5)
    blocked = any("Blocked" in f.read_text() for f in (made.folder / "model").rglob("*.xml"))
    assert blocked == (processor == "native")


def test_every_variable_comes_back(make, tmp_path):
    made = make(normalized, shapes={"x": [8, 3, 9, 9]})
    data = {"x": floats(STEPS, 8, 3, 9, 9)}
    found = made.train("--save", tmp_path / "saved", **in_rows(data))
    np.testing.assert_allclose(found, natively_trained(made.program, **data), rtol=1e-4)
    readme = (made.folder / "README.md").read_text()
    lines = readme.partition("In Paddle:\n\n")[2].partition("\n\n")[0]
    program = made.program
    names = [p.name for p in program.main.global_block().all_parameters()]
    assert "a/b" in names and (tmp_path / "saved" / "a%2Fb.npy").is_file()
    expected = {name: program.variable(name) for name in names}
    fresh = Program(normalized)
    with paddle.static.scope_guard(fresh.scope):
        code = textwrap.dedent(lines).replace('"trained"', repr(str(tmp_path / "saved")))
        own = {"numpy": np, "paddle": paddle, "program": fresh.main}
        exec(code, own)  # as the README of each project says
    assert len(own["state"]) == len(json.loads(made.manifest())["variables"])
    for name, value in expected.items():
        np.testing.assert_allclose(fresh.variable(name), value, rtol=1e-3, atol=1e-5)
    again = {"x": data["x"][:2]}
    np.testing.assert_allclose(
        natively_trained(fresh, **again), natively_trained(program, **again), rtol=1e-3
    )


def test_a_schedule_is_fed(make):
    """One rate for each step, in a file with one dimension more than the input."""
    made = make(scheduled)
    data = {"x": floats(STEPS, 5, 4)}
    rates = np.float32([0.5 * 0.1 ** (step // 2) for step in range(STEPS)])
    (name,) = {i["name"] for i in json.loads(made.manifest())["inputs"]} - {"x"}
    found = made.train("--batch", 5, **in_rows(data), **{name: rates})
    expected = []
    for x in data["x"]:
        expected += natively_trained(made.program, x=x[None])
        made.program.main.lr_scheduler.step()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_inputs_that_cannot_be_trained_on_are_rejected(make, tmp_path):
    made = make(linear_regression)
    x, y = floats(6, 4), floats(6, 1)

    def refused(*arguments, **data):
        return made.main("--train", *made.inputs(**data), *arguments, status=2).stderr

    assert "give --batch: the program leaves it open" in refused(x=x, y=y)
    assert "has fewer rows than a batch" in refused("--batch", 7, x=x, y=y)
    assert "y is float32 [?, 1], and float32 [2, 2] was given" in refused(
        "--batch", 2, x=x, y=floats(6, 2)
    )
    (tmp_path / "saved").write_text("")
    assert "cannot make the folder" in refused("--batch", 2, "--save", tmp_path / "saved", x=x, y=y)
    assert "there is no file" in refused("--batch", 2, "--load", tmp_path / "none", x=x, y=y)
    inference = make(perceptron, name="other")
    text = inference.main("--train", *inference.inputs(x=x), "--batch", 2, status=2).stderr
    assert "the first result is not a loss" in text


def rows_from_on(start):
    """The rows of x after the first ones, and all: there may be none of them."""
    x = paddle.static.data("x", [-1, 4], "float32")
    return paddle.concat([F.relu(x[start:]) * 2.0, paddle.tanh(x)])


def in_a_branch(start):
    x = paddle.static.data("x", [-1, 4], "float32")
    return paddle.static.nn.cond(
        paddle.sum(x) > 0.0, lambda: paddle.concat([F.relu(x[start:]), x]), lambda: paddle.tanh(x)
    )


@pytest.mark.parametrize("build", [rows_from_on, in_a_branch])
def test_programs_that_no_run_can_compute_are_rejected(build, tmp_path):
    """At generation, since each run would end in this error."""
    program = Program(lambda: build(5))
    with pytest.raises(NgraphError, match="computes an empty tensor for these shapes"):
        generate_native(
            program.main, tmp_path / "cpp", program.fetches, scope=program.scope,
            shapes={"x": [5, 4]},
        )  # fmt: skip
    assert not (tmp_path / "cpp").exists()


def test_batches_of_one_may_be_empty(make):
    """A program with empty results only for batches of one row is generated, and rejects them."""
    made = make(lambda: rows_from_on(1))
    for rows in (3, 9):
        x = floats(rows, 4)
        assert_close(made.run(x=x), made.program.run(engine=False, x=x))
    refused = made.main(*made.inputs(x=floats(1, 4)), status=2).stderr
    assert "was not generated for inputs of the shapes [1, 4]" in refused


def test_programs_that_need_static_shapes_are_rejected(tmp_path):
    for build in (lenet, dropping):
        program = Program(build)
        with pytest.raises(NgraphError, match=r"interval 0 .*; give shapes"):
            generate_native(program.main, tmp_path / "out", program.fetches, scope=program.scope)


def test_files_have_to_belong_together(make, tmp_path):
    """Rows, and feeds of each step; saved files survive a failed run."""
    made = make(scheduled)
    (rate,) = {i["name"] for i in json.loads(made.manifest())["inputs"]} - {"x"}
    saved = tmp_path / "saved"

    def train(steps, *options, status=2, full_disk=False):
        words = made.inputs(x=floats(6, 4), **{rate: np.full([steps], 0.1, "float32")})
        words += ["--train", "--batch", 2, "--save", saved, *options]
        limit = ["bash", "-c", "trap '' XFSZ; ulimit -f 0; exec \"$@\"", "bash"]
        return made.main(*words, status=status, under=limit if full_disk else []).stderr

    assert "has 2 entries for 3 steps" in train(2)
    assert "has 4 entries for 6 steps" in train(4, "--epochs", 2)
    train(3, "--epochs", 2, status=0)
    before = {path: path.read_bytes() for path in saved.iterdir()}
    assert len(before) == 2
    assert "cannot write" in train(3, full_disk=True)
    assert {path: path.read_bytes() for path in saved.iterdir()} == before
    precious = tmp_path / "precious"
    precious.write_text("precious")
    for path in before:
        path.unlink()
        path.symlink_to(precious)
        path.with_name(f"{path.name}.unfinished").symlink_to(precious)
    train(3, "--epochs", 2, status=0)
    assert {path: path.read_bytes() for path in before} == before
    assert precious.read_text() == "precious"

    other = make(linear_regression, name="other")
    text = other.main(
        "--train", *other.inputs(x=floats(6, 4), y=floats(5, 1)), "--batch", 2, status=2
    )
    assert "x.npy has 6 rows, and " in text.stderr and "y.npy has 5" in text.stderr


# -- random numbers --------------------------------------------------------------------------------


def dropping():
    """Samples twice in a step, few elements and many, and once without a reader."""
    x = paddle.static.data("x", [-1, 4], "float32")
    hidden = F.dropout(nn.Linear(4, 64)(x), 0.4)
    hidden = hidden + paddle.uniform([64]) * paddle.normal(0.0, 1.0, [64])
    loss = paddle.mean(nn.Linear(64, 1)(F.dropout(hidden, 0.3, mode="downscale_in_infer")) ** 2)
    paddle.optimizer.Adam(0.05).minimize(loss)
    return loss


@pytest.mark.usefixtures("native_in_order")
def test_dropout_samples_the_masks_of_paddle(make):
    made = make(dropping, seed=11, shapes={"x": [20, 4]})
    data = {"x": floats(STEPS, 20, 4)}
    found = made.train("--batch", 20, **in_rows(data))
    other = made.train("--batch", 20, "--seed", 12, **in_rows(data))
    for seed, losses in ((11, found), (12, other)):
        program = Program(dropping)
        with paddle.static.scope_guard(program.scope):
            paddle.seed(seed)
        np.testing.assert_allclose(losses, natively_trained(program, **data), rtol=1e-5)
    assert found != other


# -- control flow ----------------------------------------------------------------------------------


def test_a_loop(make):
    made = make(transpiled.loop)
    for rows in (1, 2, 9):
        x = floats(rows, 4, seed=rows)
        assert_close(made.run(x=x), made.program.run(engine=False, x=x))


def counting():
    """A loop in a loop, in 64 bits, whose number of iterations depends on the data."""
    x = paddle.static.data("x", [-1, 4], "float32")
    large = paddle.full([1], 2**40, "int64")

    def body(number, hidden):
        def inner(count, hidden):
            return [count + 1, hidden * 0.5]

        zero = paddle.zeros([1], "int64")
        _, hidden = paddle.static.nn.while_loop(
            lambda count, _: count < 2, inner, [zero, hidden + 1.0]
        )
        return [number + 1, hidden]

    number, hidden = paddle.static.nn.while_loop(
        lambda number, hidden: paddle.logical_and(
            number < large + 5, paddle.max(paddle.abs(hidden)).reshape([1]) > 0.5
        ),
        body,
        [large, x],
    )
    return [number, hidden]


def test_a_loop_that_depends_on_the_data(make):
    made = make(counting)
    iterations = set()
    for size in (0.1, 2.0, 1000.0):
        x = floats(3, 4) * np.float32(size)
        found = made.run(x=x)
        assert_close(found, made.program.run(engine=False, x=x))
        iterations.add(int(found[0][0]) - 2**40)
        printed = made.main(*made.inputs(x=x)).stdout
        assert f"result_0: int64 [1]: {found[0][0]}\n" in printed  # all digits
    assert min(iterations) == 0 and len(iterations) == 3


def test_branches_that_train(make):
    """Values that the forward branch saves for the backward branch are on a stack."""
    made = make(transpiled.trained_branch, shapes={"x": [5, 4]})
    data = {"x": np.stack([floats(5, 4, seed=i) + (0.5 if i % 2 else -0.5) for i in range(STEPS)])}
    found = made.train("--batch", 5, **in_rows(data))
    np.testing.assert_allclose(found, natively_trained(made.program, **data), rtol=1e-5)


def looping():
    """Training through two loops, one with a data-dependent number of iterations."""
    x = paddle.static.data("x", [-1, 4], "float32")
    hidden = paddle.tanh(nn.Linear(4, 4)(x))
    shared = nn.Linear(4, 4)

    def body(number, hidden):
        return [number + 1, paddle.tanh(shared(hidden)) + 0.25 * hidden]

    def started(number, hidden):  # Paddle frees the initial values of a loop
        return [number, paddle.assign(hidden)]

    iterations = paddle.cast(paddle.sum(x) > 0.0, "int64") * 2 + 1
    number, hidden = paddle.static.nn.while_loop(
        lambda number, _: number < iterations, body, started(paddle.zeros([], "int64"), hidden)
    )
    _, hidden = paddle.static.nn.while_loop(
        lambda number, _: number < 2, body, started(paddle.zeros([1], "int64"), hidden)
    )
    loss = paddle.mean((hidden - 0.5) ** 2)
    paddle.optimizer.Adam(0.05).minimize(loss)
    return [loss, number]


@pytest.mark.parametrize("shapes", [None, {"x": [5, 4]}])
def test_loops_that_train(shapes, make):
    """The backward pass pops as many values as the forward pass has pushed."""
    made = make(looping, shapes=shapes)
    data = {"x": np.stack([floats(5, 4, seed=i) + (0.5 if i % 2 else -0.5) for i in range(STEPS)])}
    found = made.train("--batch", 5, **in_rows(data))
    np.testing.assert_allclose(found, natively_trained(made.program, **data), rtol=1e-5)


def test_scalars_stay_scalars(make):
    """Also if kernels outside of subgraphs compute on them: other operators need rank 0."""

    def build():
        x = paddle.static.data("x", [-1, 4], "float32")
        many = paddle.static.data("many", [], "int64")

        def body(number, total):
            return [number + 1, paddle.increment(total * 3 - 2, 4.0)]

        counted = paddle.static.nn.while_loop(
            lambda number, _: number < many,
            body,
            [paddle.zeros([], "int64"), paddle.full([], 2**40, "int64")],
        )
        return [*counted, paddle.scale(many, 2.0, 1.0), x + 1.0]

    made = make(build)
    for many in (0, 5):
        feed = {"x": floats(3, 4), "many": np.array(many)}
        assert_close(made.run(**feed), made.program.run(engine=False, **feed))


def test_a_variable_that_branches_set(make):
    def build():
        x = paddle.static.data("x", [-1, 4], "float32")
        state = paddle.static.create_parameter([4], "float32", name="state")

        def set_to(factor):
            paddle.assign(state * factor, state)
            return paddle.sum(state)

        total = paddle.static.nn.cond(paddle.sum(x) > 0, lambda: set_to(2.0), lambda: set_to(-0.5))
        return [total, state + 0.0]

    made = make(build, "ngraph_model")
    functions = Library(made.folder / "build" / "libngraph_model.so")
    model = functions.open(made.folder / "model")
    for sign in (1, -1, -1, 1):
        x = np.full((2, 4), sign, "float32")
        assert_close(functions.run(model, x), made.program.run(engine=False, x=x))
    functions.close(model)


# -- input that the command line rejects -----------------------------------------------------------


def test_inputs_that_are_not_the_programs(make):
    made = make(chain)
    x = floats(2, 4)

    def refused(**feed):
        return made.main(*made.inputs(**feed), status=2).stderr

    assert "the program has no input 'y', but x" in refused(x=x, y=x)
    assert "--input x=FILE is missing" in refused()
    assert "x is float32 [?, 4], and float64 [2, 4] was given" in refused(x=x.astype("float64"))
    assert "x is float32 [?, 4], and float32 [2, 5] was given" in refused(x=floats(2, 5))
    assert "is no .npy file of numbers in C order" in refused(x=np.asfortranarray(x))
    assert "is no .npy file of numbers in C order" in refused(x=np.array(["text"]))
    missing = made.main("--input", "x=none.npy", status=2).stderr
    assert "there is no file none.npy" in missing
    words = made.inputs(x=x)
    file = made.folder / "x.npy"
    file.write_bytes(file.read_bytes()[:-4])
    assert (
        "x.npy is damaged: 28 bytes of data, and not the 32" in made.main(*words, status=2).stderr
    )
    assert "there is no option --no" in made.main("--no", status=2).stderr
    for odd in ("-1", "65537", "1x", ""):
        assert "--threads takes a whole number" in made.main("--threads", odd, status=2).stderr
    made.main(*made.inputs(x=x), "--seed", 2**63 - 1)
    newer = file.read_bytes()
    file.write_bytes(newer[:6] + b"\x04" + newer[7:])
    assert "is no .npy file of numbers in C order" in made.main(*words, status=2).stderr


def test_model_directories_that_are_damaged(make):
    made = make(chain)
    model, words = made.folder / "model", made.inputs(x=floats(2, 4))
    for path in sorted(path for path in model.rglob("*") if path.is_file()):
        contents = path.read_bytes()
        path.write_bytes(contents[: len(contents) // 2])
        text = made.main(*words, status=2 if contents else 0).stderr
        assert not contents or (path.name in text and text.count("\n") == 1), text
        path.unlink()
        assert f"there is no file {path}" in made.main(*words, status=2).stderr
        path.write_bytes(contents)
    made.main(*words)
    other = json.loads((model / "manifest.json").read_text())
    (model / "manifest.json").write_text(json.dumps({**other, "program": "0"}))
    assert "it belongs to another program than main.cc" in made.main(*words, status=2).stderr
    for part, name in (("results", "y"), ("inputs", "x")):
        odd = json.dumps({**other, part: [{**other[part][0], "name": "y"}]})
        (model / "manifest.json").write_text(odd)
        renamed = ["--input", f"y={made.folder / 'x'}.npy"] if part == "inputs" else words
        assert f"do not agree about '{name}'" in made.main(*renamed, status=2).stderr


# -- whole models ----------------------------------------------------------------------------------


def test_resnet50(make):
    def resnet50():
        x = paddle.static.data("x", [-1, 3, -1, -1], "float32")
        network = paddle.vision.models.resnet50()
        network.eval()
        return network(x)

    made = make(resnet50, shapes={"x": [1, 3, 64, 96]})
    x = floats(1, 3, 64, 96)
    (found,), (expected,) = made.run(x=x), made.program.run(engine=False, x=x)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_text_recognition(libraries, tmp_path):
    """PP-OCRv4, an old-style model, for lines of any width."""
    try:
        program, parameters, *_ = datasets.fetch(files.NETWORKS["PP-OCRv4_rec"])
    except datasets.DatasetError as error:
        pytest.skip(str(error))
    out = tmp_path / "out"
    assert command_line(["codegen", str(program), "-o", str(out)]) == 0
    native_project.build(out, f"-DNGRAPH_PREBUILT={libraries}")
    config = paddle.inference.Config(str(program), str(parameters))
    config.disable_mkldnn()
    predictor = paddle.inference.create_predictor(config)
    for shape in ((1, 3, 48, 320), (1, 3, 48, 501), (3, 3, 48, 64)):
        x = floats(*shape)
        np.save(tmp_path / "x.npy", x)
        called(out / "build" / "main", out / "model", "--input", f"x={tmp_path / 'x.npy'}",
               "--output", tmp_path)  # fmt: skip
        (found,) = (np.load(path) for path in tmp_path.glob("softmax*.npy"))
        (expected,) = predicted(predictor, x)
        np.testing.assert_allclose(found, expected, atol=2e-5)


def predicted(predictor, x):
    handle = predictor.get_input_handle("x")
    handle.reshape(list(x.shape))
    handle.copy_from_cpu(x)
    predictor.run()
    return [predictor.get_output_handle(n).copy_to_cpu() for n in predictor.get_output_names()]


# -- unsupported programs --------------------------------------------------------------------------


def drawing():
    """``multinomial``, a stochastic operator, has no converter."""
    return paddle.multinomial(F.softmax(chain()), 2)


def printing():
    return paddle.static.Print(chain()) + 1.0


def of_complex_numbers():
    return paddle.abs(paddle.fft.fft(chain()))


def two_names_of_a_memory():
    variable = chain()
    other = paddle._C_ops.share_data(variable)
    paddle._C_ops.add_(other, paddle.ones([4]))
    return variable * 2.0


def test_writes_under_another_name_are_refused(tmp_path):
    program = Program(two_names_of_a_memory)
    with pytest.raises(NgraphError, match=r"add_ .* memory that another variable shares"):
        generate_native(program.main, tmp_path / "out", program.fetches, scope=program.scope)


@pytest.mark.parametrize(
    ("build", "operator", "reason"),
    [
        (drawing, "multinomial", "it samples random numbers"),
        (printing, "print", "it has side effects"),
        (of_complex_numbers, "fft_r2c", "it has tensors of dtype complex64"),
    ],
)
def test_native_operators_are_refused_with_their_reasons(build, operator, reason, tmp_path):
    program = Program(build)
    with pytest.raises(NgraphError) as refused:
        generate_native(program.main, tmp_path / "out", program.fetches, scope=program.scope)
    text = str(refused.value)
    assert f"pd_op.{operator} (operator" in text and "is not supported in C++" in text
    assert f"its kernel cannot be called: {reason}" in text
    assert f"native {operator} x1 (at" in text  # as explain says it
    assert not list(tmp_path.iterdir())


def test_a_directory_that_is_there_is_kept(tmp_path):
    program = Program(chain)

    def generate(name, **options):
        generate_native(program.main, tmp_path / name, program.fetches, **options)

    generate("out")
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(NgraphError, match=r"out is there already: give --force"):
        generate("out")
    assert (tmp_path / "out" / "mine").is_file()
    generate("out", force=True)
    assert not (tmp_path / "out" / "mine").exists()
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "mine").touch()
    with pytest.raises(NgraphError, match="is no generated project: it is not replaced"):
        generate("else", force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["else", "out"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"processor": "z80"}, "there is no processor 'z80': give one of any, avx2, avx512"),
        ({"shapes": {"y": [1]}}, "the program has no input 'y', but x"),
        ({"shapes": {"x": [2, 5]}}, r"x has the shape \[-1, 4\] in the program, not \[2, 5\]"),
        ({"shapes": {"x": [0, 4]}}, r"x has the shape \[-1, 4\] in the program, not \[0, 4\]"),
        ({"seed": -1}, "the seed -1 is not between 0 and"),
        ({"seed": 1.5}, "the seed 1.5 is not between 0 and"),
        ({"fetch_list": {0: "x"}}, "a result is called 0: give it a name"),
        ({"fetch_list": []}, "the program has no results"),
        ({"fetch_list": ["x", "x"]}, "is no variable of the program"),
    ],
)
def test_options_that_make_no_sense(options, reason, tmp_path):
    program = Program(chain)
    given = {"fetch_list": program.fetches, **options}
    with pytest.raises(NgraphError, match=reason):
        generate_native(program.main, tmp_path / "out", scope=program.scope, **given)
    assert not list(tmp_path.iterdir())


def test_variables_that_have_no_file(tmp_path):
    def build():
        x = paddle.static.data("x", [-1, 4], "float32")
        half = nn.initializer.Constant(0.5)
        w = paddle.static.create_parameter([4], "bfloat16", name="w", default_initializer=half)
        found = x * w.astype("float32")
        paddle.assign(w.astype("float32").astype("bfloat16"), output=w)
        return found

    program = Program(build)
    with pytest.raises(NgraphError, match=r"w is bfloat16, which \.npy files do not support"):
        generate_native(program.main, tmp_path / "out", program.fetches, scope=program.scope)
    assert not list(tmp_path.iterdir())


def test_variables_that_are_not_there(tmp_path):
    program = Program(convolutions)
    with pytest.raises(NgraphError, match="run the startup program first"):
        generate_native(
            program.main, tmp_path / "out", program.fetches, scope=paddle.static.Scope()
        )
    with pytest.raises(NgraphError, match="takes a static program, not int"):
        generate_native(3, tmp_path / "out", [])
    assert not list(tmp_path.iterdir())


def test_replaced_projects_exist_until_the_end(tmp_path, monkeypatch):
    program = Program(chain)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    def generate(**options):
        generate_native(program.main, tmp_path / "link", program.fetches, **options)

    generate()
    text = (tmp_path / "real" / project.MANIFEST).read_text()
    rename = Path.rename

    def fails(path, target):
        if path.name.endswith(".unfinished"):
            raise OSError(5, "Input/output error", str(path))
        return rename(path, target)

    with monkeypatch.context() as patch, pytest.raises(NgraphError, match="Input/output error"):
        patch.setattr(Path, "rename", fails)
        generate(seed=1, force=True)
    assert (tmp_path / "real" / project.MANIFEST).read_text() == text
    generate(seed=1, force=True)
    assert (tmp_path / "real" / project.MANIFEST).read_text() != text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]
    assert (tmp_path / "link").is_symlink()


def test_a_failure_to_write_leaves_nothing(tmp_path, monkeypatch):
    def fails(*args):
        raise OSError(28, "No space left on device", str(tmp_path / "out" / "main.cc"))

    program = Program(chain)
    monkeypatch.setattr(project, "core_files", fails)
    with pytest.raises(NgraphError, match="No space left on device"):
        generate_native(program.main, tmp_path / "out", program.fetches)
    assert not list(tmp_path.iterdir())


# -- the command line ------------------------------------------------------------------------------


def test_codegen_of_a_saved_model(libraries, tmp_path, capsys):
    prefix = save_model(tmp_path, perceptron)
    out = tmp_path / "out"
    assert command_line(["codegen", prefix, "-o", str(out), "--shapes", "x=-1x4"]) == 0
    text = capsys.readouterr().out
    assert "run through nGraph, in 1 interval" in text
    assert f"cmake --build {out}/build" in text
    native_project.build(out, f"-DNGRAPH_PREBUILT={libraries}")
    np.save(tmp_path / "x.npy", floats(3, 4))
    found = called(out / "build" / "main", out / "model", "--input", f"x={tmp_path / 'x.npy'}")
    assert "float32 [3, 3]: " in found.stdout
    assert command_line(["codegen", prefix, "-o", str(out)]) == 2
    assert "is there already: give --force" in capsys.readouterr().err
    assert command_line(["codegen", prefix, "-o", str(out), "--force", "--processor", "avx2"]) == 0


def test_codegen_of_a_saved_program_that_trains(libraries, tmp_path, capsys):
    """With the state of its optimizer, after two steps."""
    program = Program(transpiled.momentum)
    x = floats(STEPS, 5, 4)
    natively_trained(program, x=x[:2])
    feeds = [op.result(0) for op in program.main.global_block().ops if op.name() == "pd_op.data"]
    prefix, out = str(tmp_path / "model"), tmp_path / "out"
    with paddle.static.scope_guard(program.scope):
        paddle.static.save_inference_model(
            prefix,
            [value for value in feeds if not value.persistable],
            program.fetches,
            program.executor,
            program=program.main,
            skip_prune_program=True,
        )
    assert command_line(["codegen", prefix, "-o", str(out)]) == 2
    assert "the program trains: give --train" in capsys.readouterr().err
    assert command_line(["codegen", prefix, "-o", str(out), "--train"]) == 0
    native_project.build(out, f"-DNGRAPH_PREBUILT={libraries}")
    np.save(tmp_path / "x.npy", x.reshape(-1, 4))
    words = ["--train", "--batch", 5, "--input", f"x={tmp_path / 'x.npy'}"]
    text = called(out / "build" / "main", out / "model", *words).stdout
    found = [float(line.split()[3]) for line in text.splitlines()]
    np.testing.assert_allclose(found, natively_trained(program, x=x), rtol=1e-5)
    assert (
        command_line(["codegen", save_model(tmp_path), "-o", str(tmp_path / "b"), "--train"]) == 2
    )
    assert "it does not train" in capsys.readouterr().err


@pytest.mark.parametrize("ending", [".pdiparams", ".json"])
def test_codegen_of_a_damaged_model(ending, tmp_path, capsys):
    prefix = Path(save_model(tmp_path, perceptron))
    file = prefix.with_suffix(ending)
    file.write_bytes(file.read_bytes()[:-20])
    assert command_line(["codegen", str(prefix), "-o", str(tmp_path / "out")]) == 2
    assert "paddle_ngraph: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_sources_of_projects_are_package_data():
    text = (ROOT / "pyproject.toml").read_text().partition("[tool.setuptools.package-data]")[2]
    patterns = re.findall(r'"([^"]+/[^"]*)"', text.partition("\n[tool.")[0])
    taken = [path for path in project._TEMPLATE.rglob("*") if path.is_file()]
    names = [*project.core_files(), *(str(p.relative_to(project._TEMPLATE.parent)) for p in taken)]
    assert len(names) > 60
    missing = [n for n in names if not any(PurePath(n).match(pattern) for pattern in patterns)]
    assert not missing


def test_the_headers_are_those_that_the_core_is_built_with():
    assert f'"{toolchain.HEADERS}"' in (ROOT / "setup.py").read_text()
    assert toolchain.HEADERS in (ROOT / "requirements" / "onednn.txt").read_text()


# -- serving ---------------------------------------------------------------------------------------


def test_eight_threads_serve_ten_thousand_requests(make):
    made = make(perceptron, "main", "serve")
    command = [made.folder / "build" / "serve", made.folder / "model", 10_000]
    assert called(*command).stdout == "10000 of 10000 right\n"
    constants = made.folder / "model" / "functions" / "constants.bin"
    constants.write_bytes(constants.read_bytes()[:-1])
    assert "constants.bin has" in called(*command, status=2).stderr


@pytest.fixture
def library(make):
    made = make(transpiled.loop, "ngraph_model")
    return made, Library(made.folder / "build" / "libngraph_model.so")


def test_a_run_that_fails_leaves_nothing_behind(make):
    """Sizes come back after others, for which a run has failed in its middle."""

    def build():
        x = paddle.static.data("x", [2, -1, 4], "float32")
        h = paddle.tanh(paddle.matmul(x, parameter(4, 4)))
        divisor = paddle.cast(paddle.max(x, [1, 2]), "int32") - 7
        rest = paddle.remainder(paddle.full_like(divisor, 100), divisor)
        attention = F.softmax(paddle.matmul(h, h, transpose_y=True), -1)
        return [rest, attention, paddle.cumsum(h, 1), paddle.mean(h, 1), paddle.flip(h, [1])]

    made = make(build, "ngraph_model")
    functions = Library(made.folder / "build" / "libngraph_model.so")
    model = functions.open(made.folder / "model")
    random = np.random.default_rng(0)
    for number in range(80):
        x = np.clip(floats(2, int(random.integers(3, 7)), 4, seed=number), -3, 2)
        fails = number > 5 and random.random() < 0.4
        x[1, 0, 0] = 7 if fails else 3
        if fails:
            with pytest.raises(ValueError, match="divided by zero"):
                functions.run(model, x)
        else:
            assert_close(functions.run(model, x), made.program.run(engine=False, x=x))
    functions.close(model)


def test_the_library_runs_a_model(library):
    """In one process with this Paddle: nothing of the library meets it."""
    made, functions = library
    model = functions.open(made.folder / "model")
    assert functions.inputs(model) == [("x", "float32", [-1, 4])]
    assert [name for name, *_ in functions.results(model)] == ["result_0", "result_1"]
    for rows in (1, 3):
        x = floats(rows, 4)
        assert_close(functions.run(model, x), made.program.run(engine=False, x=x))
    functions.close(model)


def test_the_library_reports_errors(library):
    made, functions = library
    with pytest.raises(ValueError, match=r"there is no file none/manifest.json"):
        functions.open(Path("none"))
    model = functions.open(made.folder / "model")
    with pytest.raises(ValueError, match=r"x is float32 \[\?, 4\], and float32 \[3\] was given"):
        functions.run(model, floats(3))
    with pytest.raises(ValueError, match=r"x is float32 \[\?, 4\], and int64 \[2, 4\] was given"):
        functions.run(model, np.ones((2, 4), "int64"))
    functions.close(model)


def test_the_library_does_not_write_its_inputs(make):
    """Where the program overwrites its feed, too."""

    def overwriting():
        x = paddle.static.data("x", [-1, 4], "float32")
        y = paddle.exp(x)
        paddle.assign(y, x)
        return [y + 1.0, x * 1.0]

    made = make(overwriting, "ngraph_model", shapes={"x": [3, 4]})
    functions = Library(made.folder / "build" / "libngraph_model.so")
    model = functions.open(made.folder / "model")
    given = [floats(3, 4, seed=seed) for seed in range(4)]
    for x in given:
        assert_close(functions.run(model, x), [np.exp(x) + 1, np.exp(x)])
    for seed, x in enumerate(given):
        np.testing.assert_array_equal(x, floats(3, 4, seed=seed))
    functions.close(model)


def test_the_library_rejects_null_and_missing_values(library):
    made, functions = library
    c = functions._c
    model = functions.open(made.folder / "model")
    none = ctypes.c_void_p()
    for call, reason in (
        (lambda: c.ngraph_model_open(none, none), "the folder is NULL"),
        (lambda: c.ngraph_model_num_inputs(none), "the model is NULL"),
        (lambda: c.ngraph_model_num_results(none), "the model is NULL"),
        (lambda: c.ngraph_model_input(none, ctypes.c_size_t(0)).rank, "the model is NULL"),
        (lambda: c.ngraph_model_input(model, ctypes.c_size_t(1)).rank, "there is no input 1"),
        (lambda: c.ngraph_model_result(model, ctypes.c_size_t(9)).rank, "there is no result 9"),
        (lambda: c.ngraph_model_run(none, none, none) - 1, "the model is NULL"),
        (lambda: c.ngraph_model_run(model, none, none) - 1, "the list of inputs is NULL"),
    ):
        assert not call()
        assert c.ngraph_model_error().decode() == reason
    with pytest.raises(ValueError, match="it computes nothing that is empty"):
        functions.run(model, floats(0, 4))
    c.ngraph_array_release(none)
    c.ngraph_model_close(none)
    functions.close(model)


def test_the_benchmark_measures_and_compares(libraries, tmp_path):
    case = native._Case("mobilenet_v2", tmp_path, 2)
    assert case.build(libraries) == libraries
    found = case.measured(1)
    assert found.keys() == set(native.WAYS)
    for measured in found.values():
        assert all(measured[key] > 0 for key in ("start", "run", "memory", "disk"))
    assert found[native.CPP]["memory"] < found[native.INFERENCE]["memory"]
    table = native._table({"mobilenet_v2": found})
    assert "| MobileNetV2, 224 x 224 |" in table
    with pytest.raises(PeerError, match="differs by 1 from Paddle"):
        native._compare("C++", [[1.0, 2.0]], [[1.0, 3.0]])


@pytest.fixture
def demo(libraries, monkeypatch):
    """The demo on random digits, with libraries that are there already."""

    def build(folder):
        native_project.build(folder, f"-DNGRAPH_PREBUILT={libraries}")

    def mnist():
        generator = np.random.default_rng(0)
        images = generator.random((800, 784), dtype="float32")
        return images, generator.integers(0, 10, (800, 1))

    monkeypatch.setattr(train, "build", build)
    monkeypatch.setattr(datasets, "mnist", mnist)
    return train


def test_the_demo_trains_as_paddle_does(demo, tmp_path, capsys):
    assert demo.main(["--epochs", "2", "--folder", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "[C++] step: 0 loss: " in text and "test accuracy" in text
    assert (tmp_path / "out" / "trained" / "conv2d_0.w_0.npy").is_file()


def test_the_demo_fails_where_losses_differ(demo, monkeypatch, capsys):
    monkeypatch.setattr(demo, "generate", lambda *args: None)
    monkeypatch.setattr(demo, "build", lambda folder: None)
    monkeypatch.setattr(demo, "trained_in_cpp", lambda *args: iter([1.0] * 10))
    assert demo.main(["--epochs", "1"]) == 1
    assert "the losses of C++ are not those of Paddle" in capsys.readouterr().err
