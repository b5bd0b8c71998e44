"""Private names of Paddle: no other package reads one, and a missing one is reported first."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import _core
from paddle_ngraph.frontends.dynamic import hook as dynamic_hook
from paddle_ngraph.frontends.dynamic.lazy import capture
from paddle_ngraph.frontends.predictor import configuration
from paddle_ngraph.frontends.predictor import hook as predictor_hook
from paddle_ngraph.paddle_private import check, names, protocols, replaced
from paddle_ngraph.paddle_private.place import ATTRIBUTE, PatchTarget, signature_of
from tests import incompatible_paddle

PACKAGE = Path(paddle_ngraph.__file__).parent
SOURCES = [
    path for path in sorted(PACKAGE.rglob("*.py")) if path.parent != PACKAGE / "paddle_private"
]

# -- names outside of paddle_private -------------------------------------------------------------

# Modules of Paddle imported outside of `paddle_private`: its public ones.
PUBLIC = {"paddle", "paddle.inference", "paddle.nn", "paddle.pir", "paddle.static", "paddle.utils"}
# Private names that are neither Paddle's nor of the module that reads them.
OF_OTHERS = {
    "_asdict": "Python's",
    "_at_fork_reinit": "Python's",
    "_current_frames": "Python's",
    "_exit": "Python's",
    "_Model__model": "OpenVINO's",
}
# Targets of assignments in addition to objects of the package.
ASSIGNED = {"sys.excepthook", "sys.argv", "LOGGER.propagate"}


class Faults(ast.NodeVisitor):
    """Collects the accesses to Paddle in a module that are reserved for `paddle_private`.

    Args:
        own: The attributes of classes of the package.
        classes: These classes, by name.
    """

    def __init__(
        self, tree: ast.Module, own: set[str], classes: Mapping[str, ast.ClassDef] | None = None
    ) -> None:
        self.found: list[str] = []
        self._own = own
        self._locals = {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.value) == "threading.local()"
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        self._private = attributes_in(tree)
        self._classes: list[set[str]] = []
        self._of_paddle: set[str] = set()
        mine = classes_in(tree)
        self._by_name = {**(classes or {}), **mine}
        for each in mine.values():
            self._private |= set().union(*map(attributes_in, self._bases_of(each)))
        self.visit(tree)

    def _bases_of(self, node: ast.ClassDef) -> list[ast.ClassDef]:
        """Returns the base classes that belong to the package."""
        return [self._by_name[b.id] for b in node.bases if getattr(b, "id", "") in self._by_name]

    def _report(self, node: ast.AST) -> None:
        self.found.append(f"{getattr(node, 'lineno', 0)}: {ast.unparse(node)}")

    def visit_Import(self, node: ast.Import) -> None:
        for each in node.names:
            if is_paddle(each.name):
                self._of_paddle.add((each.asname or each.name).partition(".")[0])
                if each.name not in PUBLIC:
                    self._report(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if is_paddle(node.module or ""):
            self._of_paddle |= {each.asname or each.name for each in node.names}
            if node.module not in PUBLIC or any(each.name[0] == "_" for each in node.names):
                self._report(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and node.value.startswith(("paddle.base", "paddle._")):
            self._report(node)

    def visit_Call(self, node: ast.Call) -> None:
        function = ast.unparse(node.func)
        if function in ("setattr", "delattr", "object.__setattr__"):
            self._report(node)
        named = [each for each in node.args if isinstance(each, ast.Constant)]
        if function in ("getattr", "hasattr", "attrgetter") and any(
            is_private(str(each.value)) for each in named
        ):
            self._report(node)
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        # Attributes that a base class sets belong to the class, too.
        self._classes.append(set().union(*map(attributes_in, [node, *self._bases_of(node)])))
        self.generic_visit(node)
        self._classes.pop()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        root = node
        while isinstance(root.value, ast.Attribute):
            root = root.value
        is_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        of_paddle = isinstance(root.value, ast.Name) and root.value.id in self._of_paddle
        if node.attr == "__dict__" or (of_paddle and root.attr == "base"):
            self._report(node)
        elif is_private(node.attr) and node.attr not in OF_OTHERS:
            own = self._private if not is_self else self._classes[-1] if self._classes else set()
            if of_paddle or node.attr not in own:
                self._report(node)
        if isinstance(node.ctx, (ast.Store, ast.Del)):
            of_thread = isinstance(node.value, ast.Name) and node.value.id in self._locals
            is_own = node.attr in self._own and not of_paddle
            if not (is_own or of_thread or ast.unparse(node) in ASSIGNED):
                self._report(node)
        self.generic_visit(node)


def is_paddle(module: str) -> bool:
    return module.partition(".")[0] == "paddle"


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def attributes_in(tree: ast.AST) -> set[str]:
    """Yields names of functions, classes and fields in classes, and of attributes of ``self``."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                found.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Assign):
            found |= {each.id for each in node.targets if isinstance(each, ast.Name)}
    return found


def faults_in(
    text: str,
    own: set[str] | None = None,
    classes: Mapping[str, ast.ClassDef] | None = None,
) -> list[str]:
    tree = ast.parse(text)
    return Faults(tree, own or attributes_of_classes(tree), classes).found


def classes_in(tree: ast.AST) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def attributes_of_classes(tree: ast.AST) -> set[str]:
    return {name for node in classes_in(tree).values() for name in attributes_in(node)}


@pytest.fixture(scope="module")
def own() -> set[str]:
    """The attributes of classes of the package."""
    return {name for path in SOURCES for name in attributes_of_classes(ast.parse(path.read_text()))}


@pytest.fixture(scope="module")
def classes() -> dict[str, ast.ClassDef]:
    """The classes of the package."""
    found: dict[str, ast.ClassDef] = {}
    for path in SOURCES:
        found |= classes_in(ast.parse(path.read_text()))
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_paddle_private_accesses_private_names(
    path: Path, own: set[str], classes: Mapping[str, ast.ClassDef]
) -> None:
    assert faults_in(path.read_text(), own, classes) == []


@pytest.mark.parametrize(
    "text",
    [
        "from paddle.base import core",
        "from paddle.base.libpaddle import pir",
        "from paddle import _C_ops",
        "import paddle.base.executor",
        "from paddle.jit.dy2static import pir_partial_program",
        "import paddle\npaddle.base.core.Scope()",
        "import paddle\npaddle._C_ops.relu",
        "import paddle\npaddle.static.io.load_vars = print",
        "import paddle.static as s\ns.Executor.run = print",
        "from paddle.static import Executor\nExecutor.run = print",
        "from paddle.static import Executor\ndel Executor.run",
        "setattr(thing, name, print)",
        "def f(tensor):\n    tensor._clear()",
        "def f(self):\n    return self._place",
        "class Own:\n    def f(self, tensor):\n        return tensor._ptr()",
        "class Own:\n    _own = 1\n    def f(self):\n        return self._place",
        "getattr(program, '_graph', None)",
        "value.persistable = True",
        "layer.__dict__['mine'] = 1",
        "import importlib\nimportlib.import_module('paddle.base.core')",
    ],
)
def test_accesses_to_paddle_are_found(text: str) -> None:
    assert len(faults_in(text)) >= 1


@pytest.mark.parametrize(
    "text",
    [
        "import paddle\npaddle.static.Scope().find_var('x')",
        "class Own:\n    def __init__(self):\n        self._place = 1\n        print(self._place)",
        "class Own:\n    _field: int\ndef f(own):\n    return own._field",
        "import threading\n_thread = threading.local()\n_thread.asks = True",
    ],
)
def test_other_accesses_are_allowed(text: str) -> None:
    assert faults_in(text) == []


# -- expectations of Paddle ----------------------------------------------------------------------

PLACES = list(check.patch_targets())


def test_each_patch_target_is_listed_once() -> None:
    targets = [(place.owner, place.name) for place in replaced.patch_targets()]
    assert len(set(targets)) == len(targets)
    assert len(set(PLACES)) == len(PLACES)


@pytest.mark.parametrize("place", replaced.patch_targets(), ids=str)
def test_each_patch_has_the_signature_of_its_target(place: PatchTarget) -> None:
    dynamic_hook.switch(True)  # calls the original only on request
    dynamic_hook.switch(False)
    capture.install()
    if place is replaced.CREATE_POOL:
        assert place.current is predictor_hook._create_pool
        return
    assert signature_of(place.current) == place.signature
    if _core.is_replaceable(place.current):
        with pytest.raises(paddle_ngraph.NgraphError, match="is replaced already"):
            _core.replace_calls(place.current, print)
        return
    held = place.current.fget if isinstance(place.current, property) else place.current
    assert hasattr(held, "__wrapped__")


def test_every_reason_of_a_configuration_has_its_patch_target() -> None:
    assert set(configuration._UNSUPPORTED_GETTERS) <= {
        place.name for place in protocols.members(protocols.Config)
    }
    assert {place.name for place in replaced.CONFIG_SETTERS} == set(
        configuration.UNSUPPORTED_SETTERS
    )


def test_every_protocol_is_checked() -> None:
    targets = {
        each
        for each in vars(protocols).values()
        if isinstance(each, type) and Protocol in each.__bases__
    }
    assert targets == set(protocols.CLASSES)


FORMS = [
    ("one(arg0: paddle.base.libpaddle._Scope, arg1: str) -> phi::DenseTensor\n\nIt does.\n", 1),
    ("one(self: A, x: dict[str, variant<B, C>], y: Callable[[int, str], None] = None) -> int", 2),
    ("one(*args, **kwargs)\nOverloaded function.\n\n1. one(self: A) -> None\n\n"
     "2. one(self: A, arg0: a::B) -> None\n\n3. one(self: A, arg0: c::D) -> None\n", 3),
    ("one() -> dict[str, list[paddle.base.libpaddle.pir.Value]]", 4),
    ("It returns a -> b.", 5),
]  # fmt: skip
EXPECTED = {
    1: "(arg0, arg1) -> DenseTensor",
    2: "(self, x, y=...) -> int",
    3: "(self) -> None or (self, arg0) -> None",
    4: "() -> dict[str, list[Value]]",
    5: None,
}


@pytest.mark.parametrize(("documentation", "number"), FORMS)
def test_the_signature_of_a_function_of_the_core(documentation: str, number: int) -> None:
    class Function:
        __doc__ = documentation

    assert signature_of(Function()) == EXPECTED[number]


def test_the_signature_of_a_python_function() -> None:
    def one(self: Any, names: list[str], *rest: int, copy: bool = True, **others: int) -> None:
        """Not me(arg0: int) -> None"""

    assert signature_of(one) == "(self, names, *rest, copy=..., **others)"


# -- a Paddle that does not match ----------------------------------------------------------------


def faults() -> Iterator[tuple[str, str, str | None, str]]:
    """Yields every way in which a patch target may differ from the expectation."""
    for place in PLACES:
        if place.name != "__new__":  # inherited by every class
            yield (*place, "removed")
        if place.signature not in (None, ATTRIBUTE):
            yield (*place, "called otherwise")


def run(
    *arguments: str, extra: Mapping[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FLAGS_use_ngraph": "1", "GLOG_minloglevel": "2", **(extra or {})}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        **options,
    )


@pytest.mark.slow("starts a process for each missing name")
def test_missing_names_are_reported_before_patching() -> None:
    chosen = list(faults())
    assert len(chosen) > 300
    found = run("-m", incompatible_paddle.__name__, input=json.dumps(chosen), cwd=PACKAGE.parent)
    assert json.loads(found.stdout.splitlines()[-1]) == []


SCRIPT = """
import warnings
import numpy as np
import paddle
from paddle.base import core
del core.DenseTensor._ptr
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import paddle_ngraph
print(*(each.message for each in caught if "DenseTensor._ptr" in str(each.message)))
paddle.enable_static()
x = paddle.static.data("x", [2])
(out,) = paddle.static.Executor().run(feed={"x": np.ones(2, "float32")}, fetch_list=[x + 1.5])
runs = paddle_ngraph.stats()["engine_runs"] if paddle_ngraph.is_enabled() else 0
print(out, runs, hasattr(core.DenseTensor, "_ptr"))
"""


@pytest.mark.slow("starts a process")
def test_the_import_warns_and_paddle_runs_programs() -> None:
    said, result = run("-W", "ignore", "-c", SCRIPT, cwd=PACKAGE.parent).stdout.splitlines()[-2:]
    assert said.startswith("Paddle runs all programs: ")
    assert "there is no paddle.base.libpaddle.DenseTensor._ptr; `pip install" in said
    assert result == "[2.5 2.5] 0 False"


@pytest.mark.slow("starts a process")
def test_a_port_loads_the_engine_nevertheless() -> None:
    """``PADDLE_NGRAPH_UNCHECKED``: the name stays missing, the import warns."""
    unchecked = {"PADDLE_NGRAPH_UNCHECKED": "1", "FLAGS_ngraph_min_interval_us": "0"}
    output = run("-W", "ignore", "-c", SCRIPT, cwd=PACKAGE.parent, extra=unchecked).stdout
    said, result = output.splitlines()[-2:]
    assert said.startswith("PADDLE_NGRAPH_UNCHECKED: there is no paddle.base.libpaddle.DenseTensor")
    assert result == "[2.5 2.5] 1 False"


def test_names_are_bound_to_paddles_objects() -> None:
    assert isinstance(paddle.CPUPlace(), type(names.expected_place()))
    assert names.new_scope().find_var("x") is None
