"""The table of all patches of Paddle: targets, when they are installed, and why each is needed.

docs/reference/patches.md is written from it. The patches are defined by the hooks of the frontends;
a test compares the table with the names that are patched in a new process.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from paddle_ngraph.paddle_private import replaced as r
from paddle_ngraph.paddle_private.place import PatchTarget


class InstallationPhase(Enum):
    """The phase at which patches are installed.

    Each phase until dynamic mode also installs the patches of those before it.
    """

    IMPORT = "import"
    CONFIGURATION = "first configuration"
    FIRST_USE = "first use"
    DYNAMIC = "dynamic mode"
    JOB = "jobs"


class PatchGroup(NamedTuple):
    """Patches that are installed together, for one reason.

    Attributes:
        targets: The names that are patched.
        phase: The phase of installation.
        reason: The reason why the package works only with these patches, in one sentence.
    """

    targets: tuple[PatchTarget, ...]
    phase: InstallationPhase
    reason: str


PATCHES = (
    PatchGroup(
        (r.SET_FLAG,),
        InstallationPhase.IMPORT,
        "The patches of the first use are installed before the flag is on.",
    ),
    # -- memory -----------------------------------------------------------------------------------
    PatchGroup(
        (*r.EXPOSE_ADDRESSES, *r.SHARE_WITH_TENSOR, *r.SHARE_MEMORY),
        InstallationPhase.IMPORT,
        "Memory may be written at any time once its address was handed out, or while a capsule or "
        "slice of it exists, which cannot be told from a view later.",
    ),
    PatchGroup(
        r.RETAIN_ADDRESSES,
        InstallationPhase.CONFIGURATION,
        "A handle of a predictor retains the address of a tensor's memory without holding it.",
    ),
    PatchGroup(
        r.EXPOSE_TENSORS,
        InstallationPhase.FIRST_USE,
        "Python can write a weight through the object of its tensor, so weights are constants "
        "only while no such object lives.",
    ),
    PatchGroup(
        r.RUN_PROGRAMS,
        InstallationPhase.FIRST_USE,
        "A program that runs on a scope may write weights that a function contains as constants.",
    ),
    PatchGroup(
        (*r.START_TRAINER, *r.END_TRAINER),
        InstallationPhase.FIRST_USE,
        "A trainer writes weights in threads of its own, from its start to its end.",
    ),
    PatchGroup(
        r.ERASE_VARIABLES,
        InstallationPhase.FIRST_USE,
        "Executors, those created before the first use too, keep addresses of variables, and are "
        "rebuilt after one of these has erased a variable.",
    ),
    # -- programs that Executor runs --------------------------------------------------------------
    PatchGroup(
        (r.CREATE_EXECUTOR, r.RUN_EXECUTOR),
        InstallationPhase.FIRST_USE,
        "A run of `Executor` chooses between Paddle's program and the rewritten one, and any "
        "executor may have to be rebuilt.",
    ),
    PatchGroup(
        (r.RUN_PIR, r.RUN_LEGACY),
        InstallationPhase.FIRST_USE,
        "A call that equals an earlier one skips Paddle's preparation, and any call reads the flag "
        "once, on which the format of its feeds depends.",
    ),
    PatchGroup(
        (r.KEY_OF_CALL,),
        InstallationPhase.FIRST_USE,
        "Paddle prints the whole program in each run to find its executor; a fingerprint finds it "
        "in microseconds.",
    ),
    PatchGroup(
        (r.CREATE_PLAN,),
        InstallationPhase.FIRST_USE,
        "The plan of a ProgramDesc program depends on a flag that is overridden while the engine "
        "feeds it.",
    ),
    PatchGroup(
        (r.ADD_FETCHES, r.ADD_FETCH),
        InstallationPhase.FIRST_USE,
        "Paddle's insertion point is global, so two threads that prepare programs need a lock.",
    ),
    # -- programs of dynamic mode -----------------------------------------------------------------
    PatchGroup(
        (r.RUN_STATIC,),
        InstallationPhase.FIRST_USE,
        "A call of a function or layer of `to_static` chooses between Paddle's programs and the "
        "rewritten ones.",
    ),
    PatchGroup(
        (r.GET_SCOPE,),
        InstallationPhase.FIRST_USE,
        "Threads that call one layer concurrently each need a scope of their own.",
    ),
    PatchGroup(
        (r.RUN_BACKWARD, r.RUN_PARTIAL_GRAD),
        InstallationPhase.FIRST_USE,
        "Options of a backward pass decide what a graph keeps for it, and a graph that is "
        "differentiated twice becomes single operators first.",
    ),
    PatchGroup(
        (r.KEY_OF_TRACE,),
        InstallationPhase.FIRST_USE,
        "Paddle keeps values of a failed trace under an address, and crashes when a program is "
        "created there.",
    ),
    PatchGroup(
        (r.ARGUMENTS, r.KEYWORD_ARGUMENTS),
        InstallationPhase.FIRST_USE,
        "Paddle keeps references into blocks of destroyed programs, and crashes on them.",
    ),
    PatchGroup(
        (r.UNWRAP, r.UNWRAP_CALLED, r.EXTRACT_ARGS),
        InstallationPhase.DYNAMIC,
        "`to_static` and `Model` have to see the original of a function that `compile()` has "
        "replaced.",
    ),
    PatchGroup(
        (r.CALL_LAYER,),
        InstallationPhase.DYNAMIC,
        "`enable(dynamic=...)` compiles the outermost layers, whatever their class.",
    ),
    PatchGroup(
        (r.CREATE_TENSOR,),
        InstallationPhase.DYNAMIC,
        "A tensor that is constructed from lazy ones needs their data.",
    ),
    PatchGroup(
        (r.SET_MODE, *r.DEFAULT_PROGRAMS),
        InstallationPhase.DYNAMIC,
        "A thread that builds a graph switches the mode and the default programs, which other "
        "threads read.",
    ),
    PatchGroup(
        (r.SET_PRECISION,),
        InstallationPhase.DYNAMIC,
        "Gradients of a graph are built without the mixed precision of the thread.",
    ),
    PatchGroup(
        (r.PLACE_OF_VALUE,),
        InstallationPhase.DYNAMIC,
        "Paddle warns of each value whose device it reads while it builds gradients.",
    ),
    PatchGroup(
        (r.CREATE_GRADIENT,),
        InstallationPhase.IMPORT,
        "Gradient operators get the lines of user code of their forward operators, which cannot be "
        "found later, and signals end the creation of a program of gradients, which takes seconds.",
    ),
    # -- predictors -------------------------------------------------------------------------------
    PatchGroup(
        (
            r.CREATE_PREDICTOR,
            r.CREATE_POOL,
            r.INIT_PREDICTOR,
            r.RUN_PREDICTOR,
            r.CLONE_PREDICTOR,
        ),
        InstallationPhase.CONFIGURATION,
        "A run of a predictor chooses between Paddle's predictor and the engine's.",
    ),
    PatchGroup(
        (r.CREATE_CONFIG,),
        InstallationPhase.IMPORT,
        "The patches of predictors, whose settings and handles have to be known from the start, "
        "are installed before there is a predictor.",
    ),
    PatchGroup(
        (r.ENABLE_PASSES, r.SET_THREADS, *r.CONFIG_SETTERS),
        InstallationPhase.CONFIGURATION,
        "These settings of a configuration have no getter, and the engine's predictor needs them.",
    ),
    PatchGroup(
        (r.SET_MODEL_BUFFER, r.MODEL_FROM_MEMORY),
        InstallationPhase.CONFIGURATION,
        "Paddle crashes on a PIR program in a buffer, so buffers become files in memory.",
    ),
    PatchGroup(
        r.FREE_MEMORY,
        InstallationPhase.CONFIGURATION,
        "Memory is freed in both predictors.",
    ),
    PatchGroup(
        r.HOOK_OPERATORS,
        InstallationPhase.CONFIGURATION,
        "A hook on single operators needs Paddle's predictor from then on.",
    ),
    PatchGroup(
        r.GET_HANDLES,
        InstallationPhase.CONFIGURATION,
        "A handle of a parameter can write it, so weights are no constants while it lives.",
    ),
    PatchGroup(
        (r.SET_LOD,),
        InstallationPhase.CONFIGURATION,
        "Runs with a LoD in an input are Paddle's: engine operators do not pass a LoD on.",
    ),
    PatchGroup(
        (r.COPY_RESULT,),
        InstallationPhase.FIRST_USE,
        "Large results are copied to pooled memory, without page faults.",
    ),
    # -- jobs -------------------------------------------------------------------------------------
    PatchGroup(
        (r.SEND_PARAMETERS,),
        InstallationPhase.JOB,
        "Ranks with different layers would hang, or average unrelated gradients, so all compare "
        "their layers first.",
    ),
    # -- files of models --------------------------------------------------------------------------
    PatchGroup(
        (r.OPEN_PROGRAM,),
        InstallationPhase.IMPORT,
        "A saved model may have engine operators, which run with the flag off, and functions "
        "beside it.",
    ),
    PatchGroup(
        (r.LOAD_COMBINED, r.LOAD_VARIABLES),
        InstallationPhase.IMPORT,
        "Paddle reads arbitrary values from a damaged parameter file, without an error.",
    ),
)


def targets_until(phase: InstallationPhase) -> list[PatchTarget]:
    """The names that are patched once patches of a phase are installed."""
    phases = list(InstallationPhase)
    reached = phases[: phases.index(phase) + 1]
    return [target for group in PATCHES if group.phase in reached for target in group.targets]
