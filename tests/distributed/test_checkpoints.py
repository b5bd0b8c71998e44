"""``distributed.checkpoint`` and ``resume``: a training continues as if nothing had happened."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph import NgraphError, distributed
from paddle_ngraph.distributed import checkpoint_files, job
from paddle_ngraph.distributed.checkpoint_files import Folder
from paddle_ngraph.transpiler.scope_copies import variables_of
from tests import jobs


@pytest.fixture(autouse=True)
def alone(no_job, small_intervals_pay):
    """This process is a job: a new one for each test, and for each call of ``begin``."""
    begin()
    yield
    leave()


def begin(seed: int = 1) -> None:
    """Begins as a new process would."""
    leave()
    distributed.init(seed=seed)
    random.seed(seed)
    np.random.seed(seed)


def leave() -> None:
    for joined in job._jobs:
        for checkpoints in joined.checkpoints.values():
            checkpoints._folder._lock.close()
    job._jobs.clear()


class Training:
    """With dropout, Adam and a schedule; batches are random."""

    def __init__(self, rate=None, activation=paddle.tanh):
        self.main, self.startup = paddle.static.Program(), paddle.static.Program()
        self.scope = paddle.static.Scope()
        with paddle.static.program_guard(self.main, self.startup), paddle.utils.unique_name.guard():
            x = paddle.static.data("x", [-1, 6])
            hidden = F.dropout(activation(nn.Linear(6, 16)(x)), 0.3)
            self.loss = paddle.mean(nn.Linear(16, 1)(hidden) ** 2)
            self.rate = rate or paddle.optimizer.lr.LinearWarmup(
                paddle.optimizer.lr.CosineAnnealingDecay(0.01, 8), 3, 0.0, 0.01
            )
            optimizer = distributed.distributed_optimizer(paddle.optimizer.Adam(self.rate))
            optimizer.minimize(self.loss)
        self.executor = paddle.static.Executor(paddle.CPUPlace())
        self.executor.run(self.startup, scope=self.scope)

    def step(self) -> float:
        x = np.random.normal(size=(4, 6)) * random.random()
        with paddle_ngraph.use_ngraph(), paddle.static.scope_guard(self.scope):
            feed = {"x": x.astype("float32")}
            (loss,) = self.executor.run(self.main, feed=feed, fetch_list=[self.loss])
        if isinstance(self.rate, paddle.optimizer.lr.LRScheduler):
            self.rate.step()
        return float(loss)

    def state(self) -> dict[str, np.ndarray]:
        names = variables_of(self.main, self.scope)
        return {name: np.array(self.scope.find_var(name).get_tensor()) for name in names}


@pytest.mark.slow("starts several processes")
def test_it_goes_on_as_if_nothing_had_happened(tmp_path):
    training = Training()
    losses = []
    for step in range(12):
        losses.append(training.step())
        if step < 6:
            distributed.checkpoint(training.main, step + 1, tmp_path, training.scope)
    assert paddle_ngraph.stats()["engine_runs"] == 12
    begin(seed=2)
    other = Training()
    other.step()
    assert distributed.resume(other.main, tmp_path, other.scope) == 6
    assert [other.step() for _ in range(6)] == losses[6:]
    expected = training.state()
    for name, value in other.state().items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)
    assert other.rate.state_dict() == training.rate.state_dict()


@pytest.mark.slow("starts several processes")
def test_without_a_checkpoint_it_begins(tmp_path):
    training = Training()
    assert distributed.resume(training.main, tmp_path / "new" / "folder", training.scope) == 0
    distributed.checkpoint(training.main, 1, tmp_path / "new" / "folder", training.scope)
    before = (tmp_path / "new" / "folder" / "step-00000001" / "manifest.json").stat()
    training.step()
    distributed.checkpoint(training.main, 1, tmp_path / "new" / "folder", training.scope)
    after = (tmp_path / "new" / "folder" / "step-00000001" / "manifest.json").stat()
    assert before == after, "this step is there already"


def test_the_launcher_names_the_folder(tmp_path, monkeypatch):
    training = Training()
    with pytest.raises(NgraphError, match=r"no folder for checkpoints: give folder=, or start"):
        distributed.resume(training.main, scope=training.scope)
    monkeypatch.setenv(checkpoint_files.VARIABLE, str(tmp_path))
    with paddle.static.scope_guard(training.scope):
        distributed.checkpoint(training.main, 3)
    assert checkpoint_files.newest_step(tmp_path) == 3


def refused(training, folder, match) -> None:
    """Asserts that ``resume`` raises one sentence, and changes nothing."""
    variables, rate = training.state(), training.rate
    before = rate.state_dict() if hasattr(rate, "state_dict") else None
    streams = np.random.get_state()[1].tolist(), random.getstate()
    with pytest.raises(NgraphError, match=match) as caught:
        distributed.resume(training.main, folder, training.scope)
    assert "\n" not in str(caught.value)
    for name, value in training.state().items():
        np.testing.assert_array_equal(value, variables[name])
    assert before is None or rate.state_dict() == before
    assert (np.random.get_state()[1].tolist(), random.getstate()) == streams
    assert checkpoint_files.newest_step(folder) is not None


def test_checkpoints_of_another_program_or_schedule_are_rejected(tmp_path):
    training = Training()
    distributed.checkpoint(training.main, 1, tmp_path / "a", training.scope)
    begin()
    refused(Training(activation=F.relu), tmp_path / "a", "is that of another program: give another")
    constant = Training(rate=0.01)
    assert str(constant.main) != str(training.main)
    begin()
    step = paddle.optimizer.lr.ReduceOnPlateau(0.1)
    refused(Training(rate=step), tmp_path / "a", "another schedule of the learning rate")
    begin()
    (tmp_path / "a" / "step-00000001" / "rank_0.npz").write_bytes(b"")
    refused(Training(), tmp_path / "a", r"damaged \(the digest of rank_0.npz is wrong\)")


def test_a_checkpoint_of_another_number_of_ranks_is_refused(tmp_path):
    training = Training()
    folder = Folder(tmp_path)
    unfinished = folder.begin(4)
    files = [checkpoint_files.write_data(unfinished, rank, {}, []) for rank in range(2)]
    checkpoint_files.write_manifest(unfinished, 4, files, {"program": "any"})
    folder.finish(unfinished, 4)
    folder._lock.close()
    refused(training, tmp_path, "is that of 2 ranks, and this job has 1: start it with as many")


def test_a_folder_that_cannot_be_written_to_is_one_sentence(tmp_path):
    training = Training()
    (tmp_path / "file").write_text("")
    with pytest.raises(NgraphError, match=r"file/folder cannot be used: Not a directory") as caught:
        distributed.resume(training.main, tmp_path / "file" / "folder", training.scope)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_that_fails_leaves_the_earlier_ones(tmp_path, monkeypatch):
    training = Training()
    distributed.checkpoint(training.main, 1, tmp_path, training.scope)
    full = OSError(28, "No space left on device", "rank_0.npz")
    with monkeypatch.context() as patch:

        def fail(*arguments):
            raise full

        patch.setattr(checkpoint_files, "write_data", fail)
        with pytest.raises(NgraphError, match=r"of step 2 cannot be written: No space .*rank_0"):
            distributed.checkpoint(training.main, 2, tmp_path, training.scope)
    assert sorted(each.name for each in tmp_path.iterdir()) == [".lock", "step-00000001"]
    distributed.checkpoint(training.main, 2, tmp_path, training.scope)
    assert checkpoint_files.newest_step(tmp_path) == 2


def test_a_later_checkpoint_is_not_written_over(tmp_path):
    training = Training()
    distributed.checkpoint(training.main, 9, tmp_path, training.scope)
    begin()
    training = Training()
    with pytest.raises(NgraphError, match=r"has a checkpoint of step 9 already.*: begin with res"):
        distributed.checkpoint(training.main, 1, tmp_path, training.scope)
    assert distributed.resume(training.main, tmp_path, training.scope) == 9


@pytest.mark.parametrize("step", [-1, 10**18, 1.5, "2", None])
def test_a_step_is_a_number_of_steps(tmp_path, step):
    training = Training()
    with pytest.raises(NgraphError, match=f"step={step!r}: give the number of completed steps"):
        distributed.checkpoint(training.main, step, tmp_path, training.scope)


def test_steps_may_be_counted_by_numpy(tmp_path):
    training = Training()
    for step in np.arange(3):
        distributed.checkpoint(training.main, step, tmp_path, training.scope)
    begin()
    assert distributed.resume(training.main, tmp_path, training.scope) == 2


def test_other_programs_are_refused(tmp_path):
    with paddle.pir_utils.OldIrGuard():
        old = paddle.static.Program()
    # Another test may have left parameters of this name in the default programs.
    with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
        layer = nn.Linear(2, 2)
    for program in (old, layer, None):
        with pytest.raises(NgraphError, match="checkpoints are of static PIR programs"):
            distributed.checkpoint(program, 1, tmp_path)


def test_a_state_that_is_no_number_is_one_sentence(tmp_path):
    class Odd(paddle.optimizer.lr.StepDecay):
        def state_dict(self):
            return {**super().state_dict(), "odd": object()}

    training = Training(rate=Odd(0.1, 3))
    with pytest.raises(NgraphError, match=r"the state of Odd cannot be saved: .*object is neither"):
        distributed.checkpoint(training.main, 1, tmp_path, training.scope)


def test_a_scope_without_variables_is_one_sentence(tmp_path):
    training = Training()
    for call in (
        lambda: distributed.checkpoint(training.main, 1, tmp_path, paddle.static.Scope()),
    ):
        with pytest.raises(NgraphError, match=r"there is no variable '.*' yet: run the startup"):
            call()


# -- ranks that differ ---------------------------------------------------------------------------

DIFFERING = """
import json, sys
import numpy as np, paddle, paddle_ngraph
from paddle_ngraph import NgraphError, distributed
from paddle_ngraph.distributed import checkpoint_files
from tests.distributed_networks import Training
paddle.enable_static()
distributed.init()
rank, told = distributed.rank(), []
training = Training("mlp", wrap=distributed.distributed_optimizer)
training.start()
folder = sys.argv[0] + ".checkpoints"
empty = paddle.static.Scope()

def tell(call):
    try:
        call()
        told.append("")
    except NgraphError as error:
        told.append(str(error))

save = lambda step, scope=training.scope: distributed.checkpoint(training.main, step, folder, scope)
tell(lambda: save(1 + rank))
tell(lambda: save(1 - 2 * rank))

def odd(*given):
    raise MemoryError("no room")

kept = checkpoint_files.write_data
checkpoint_files.write_data = odd if rank == 1 else kept
tell(lambda: save(1))
checkpoint_files.write_data = kept
tell(lambda: save(1, training.scope if rank == 0 else empty))
tell(lambda: save(1))
values = training.variables()
training.set_variables({name: value + 1 for name, value in values.items()})
tell(lambda: distributed.resume(training.main, folder, training.scope))
same = all(np.array_equal(value, values[name]) for name, value in training.variables().items())
print("told" + json.dumps([told, same]))
"""


@pytest.mark.slow("starts several processes")
def test_all_ranks_raise_the_same_sentence(tmp_path):
    ended = jobs.run_ranks(tmp_path, DIFFERING, ranks=2)
    jobs.assert_fine(ended)
    first, second = (json.loads(re.search("told(.*)", each.output)[1]) for each in ended)
    assert first == second
    (steps, negative, odd, missing, fine, resumed), is_same = first
    assert negative == "step=-1: give the number of completed steps"
    assert odd == "the checkpoint of step 1 cannot be written: MemoryError: no room"
    assert "rank 0 is about to write a checkpoint of step 1 of program" in steps
    assert "and rank 1 of step 2 of program" in steps
    assert re.match(r"there is no variable '.*' yet: run the startup program first", missing)
    assert (fine, resumed, is_same) == ("", "", True)
