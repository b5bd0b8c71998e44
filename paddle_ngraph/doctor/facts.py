"""Facts of the installation and of the machine, each with the problem that it is, if it is one."""

from __future__ import annotations

import os
import platform
import shutil
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paddle_ngraph import installation, library
from paddle_ngraph.utils.cpu_info import cpu_fields, lacks_avx2
from paddle_ngraph.version import __version__

# Instruction sets that decide how fast the engine is, by their names in /proc/cpuinfo.
_INSTRUCTION_SETS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
# Variables by which libraries beside the engine choose their threads or their kernels.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CPU_NUM")
_KERNEL_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
_SMALL_CACHE_MB = 1024


@dataclass(frozen=True)
class Fact:
    """A fact of the installation or the machine.

    Attributes:
        section: The heading under which a report shows it.
        name, value: The fact.
        problem: A sentence with the problem and the remedy; empty where there is none.
    """

    section: str
    name: str
    value: str
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Returns the fact as data for JSON."""
        return asdict(self)


def facts() -> list[Fact]:
    """Returns all facts. None of them contains names of the user, of the host or of models.

    Without an engine, those that need the compiled core are left out.
    """
    found = [*_packages(), *_processor(), *_memory(), *_variables()]
    if installation.why_unavailable() is None:
        library.load()
        found += [*_threads(), *_flags(), *_cache()]
    return found


def _packages() -> Iterator[Fact]:
    section = "packages"
    yield Fact(section, "paddle-ngraph", __version__)
    yield Fact(
        section,
        "Python",
        f"{platform.python_implementation()} {platform.python_version()} on "
        f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}".rstrip(", "),
    )
    for name, installed, built in installation.packages():
        text = f"{installed or 'not installed'} (compiled against {built or 'nothing'})"
        yield Fact(section, name, text)
    reason = installation.why_unavailable()
    yield Fact(section, "engine", "ready" if reason is None else "not available", reason or "")


def _processor() -> Iterator[Fact]:
    section = "processor"
    fields = cpu_fields()
    yield Fact(section, "model", fields.get("model name", "unknown"))
    units = set(fields.get("flags", "").split())
    problem = (
        "The processor has no AVX2, without which most kernels of the engine are slow."
        if lacks_avx2()
        else ""
    )
    known = [name for name in _INSTRUCTION_SETS if name in units]
    yield Fact(section, "instruction sets", " ".join(known) or "unknown", problem)
    usable = len(os.sched_getaffinity(0))
    yield Fact(section, "logical cores", f"{os.cpu_count()}, of which {usable} are usable")


def _text_of(file: str) -> str:
    """The contents of a file of the system; empty on systems without the file."""
    return Path(file).read_text() if os.access(file, os.R_OK) else ""


def _memory() -> Iterator[Fact]:
    lines = _text_of("/proc/meminfo").splitlines()
    if not lines:
        return
    sizes = {
        name: int(rest.split()[0]) / 2**20 for name, _, rest in (x.partition(":") for x in lines)
    }
    total, free = sizes.get("MemTotal", 0.0), sizes.get("MemAvailable", 0.0)
    yield Fact("memory", "of the machine", f"{total:.1f} GB, of which {free:.1f} GB are available")
    limit = _memory_limit()
    if limit is not None:
        yield Fact("memory", "limit of the control group", f"{limit / 2**30:.1f} GB")


def _memory_limit() -> int | None:
    """The limit of the control group in bytes (cgroup v2, v1), if there is one."""
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _text_of(file).strip()
        if text.isdecimal() and int(text) < 2**60:  # cgroup v1 has a huge number for no limit
            return int(text)
    return None


def _variables() -> Iterator[Fact]:
    for name in (*_THREAD_VARIABLES, *_KERNEL_VARIABLES):
        if name in os.environ:
            problem = ""
            if name in _KERNEL_VARIABLES[:2]:
                problem = f"{name} withholds instructions from oneDNN: unset it for full speed."
            yield Fact("environment", name, os.environ[name], problem)


def _threads() -> Iterator[Fact]:
    import paddle

    from paddle_ngraph import _core, flags

    section, used = "threads", _core.num_threads()
    requested = flags.get("ngraph_num_threads")
    usable = len(os.sched_getaffinity(0))
    problem = ""
    if requested > used:
        problem = (
            f"FLAGS_ngraph_num_threads={requested}, of which the affinity mask and the CPU quota "
            f"leave {used}."
        )
    elif 0 < requested < usable:
        problem = f"FLAGS_ngraph_num_threads={requested} leaves {usable - used} usable cores idle."
    yield Fact(section, "engine", f"{used} of {usable} usable cores", problem)
    quota = _core.cores_by_own_quota()
    yield Fact(section, "CPU quota", f"{quota} cores" if quota else "none")
    yield Fact(section, "packed layers and optimizers", f"{used}, of OpenMP")
    yield Fact(section, "builds in the background", _background_builds())
    math = paddle.get_flags("FLAGS_paddle_num_threads")["FLAGS_paddle_num_threads"]
    yield Fact(section, "Paddle's math libraries", str(math))
    yield Fact(section, "of this process now", str(len(os.listdir("/proc/self/task"))))


def _background_builds() -> str:
    from paddle_ngraph import flags

    return "1, of lower priority" if flags.get("ngraph_background_compile") else "off"


def _flags() -> Iterator[Fact]:
    from paddle_ngraph import flags

    for flag in flags.FLAGS.values():
        value = flags.get(flag.name)
        if value != flag.default and not flag.is_path:
            yield Fact("settings", flag.key, str(value))
    import paddle

    from paddle_ngraph.conversion import processor

    precision, able = flags.get("ngraph_precision"), processor.has_bfloat16()
    yield Fact(
        "settings",
        "precision",
        f"{precision}; the processor {'has' if able else 'has no'} units for bfloat16",
    )
    onednn = paddle.get_flags("FLAGS_use_mkldnn")["FLAGS_use_mkldnn"]
    yield Fact("settings", "oneDNN in Paddle's executor", "on" if onednn else "off")


def _cache() -> Iterator[Fact]:
    from paddle_ngraph import flags
    from paddle_ngraph.conversion import disk_cache

    section, given = "disk cache", flags.get("ngraph_cache_dir")
    if not given:
        problem = (
            "FLAGS_ngraph_cache_dir is empty: every process compiles its functions anew. Set a "
            "folder that it can write."
        )
        yield Fact(section, "folder", "none", problem)
        return
    folder = Path(given)
    default = flags.FLAGS["ngraph_cache_dir"].default
    yield Fact(section, "folder", "the default" if given == default else "set by the user")
    files = disk_cache.files()
    size = sum(file.stat().st_size for file in files)
    yield Fact(section, "content", f"{len(files)} functions and programs, {size / 2**20:.1f} MB")
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    yield Fact(section, "rights", *_rights(existing, existing == folder))
    free = shutil.disk_usage(existing).free / 2**20
    most = flags.get("ngraph_cache_disk_mb")
    problem = ""
    if free < min(most, _SMALL_CACHE_MB):
        problem = f"{free:.0f} MB are free on the disk: functions may not be stored."
    yield Fact(
        section, "free", f"{free / 1024:.1f} GB (the cache takes at most {most} MB)", problem
    )


def _rights(folder: Path, is_cache: bool) -> tuple[str, str]:
    """The rights of a folder, and the problem with them, if there is one."""
    status = folder.stat()
    text = stat.filemode(status.st_mode)
    if not os.access(folder, os.W_OK | os.X_OK):
        return text, "The folder cannot be written: functions are not stored."
    if is_cache and status.st_uid != os.geteuid():
        return text, (
            "The folder belongs to another user, whose functions are not read: set "
            "FLAGS_ngraph_cache_dir to a folder of this one."
        )
    return text, ""
