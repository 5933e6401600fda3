"""What the machine and the environment decide: device, threads, dtypes, the cache folder. The only reader of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from corekit.api import Model, ModelSpec, SupportsQuantization, SupportsStored, ThreadPool, WeightSource

from .config import Config
from .errors import ConfigError

GPU_BUDGET = 2048
CPU_BUDGET = 512
MAX_THREADS_OF_CORE = 8
"""Far beyond what is of use; a number that is larger was meant for another machine, or is a slip."""


class StepLimits(NamedTuple):
    max_num_batched_tokens: int
    long_prefill_token_threshold: int


def environment() -> Mapping[str, str]:
    """The variables of this process, for rooms that hand them on."""
    return os.environ


def variable(text: str, where: str) -> str:
    """The text, or for `env:NAME` what that variable has, as in the options of a part."""
    name = text.removeprefix("env:")
    if name == text:
        return text
    if name not in os.environ:
        raise ConfigError(f"{where}: {text!r}: the variable {name} is not set")
    return os.environ[name]


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Where downloaded models stay: COREKIT_CACHE, else corekit below XDG_CACHE_HOME or ~/.cache."""
    if given := environ.get("COREKIT_CACHE"):
        return Path(given)
    if (base := environ.get("XDG_CACHE_HOME")) and Path(base).is_absolute():
        return Path(base) / "corekit"
    try:
        return Path("~/.cache/corekit").expanduser()
    except RuntimeError as error:
        raise ConfigError(f"this user has no home folder to keep models in ({error}). Set COREKIT_CACHE to a folder that can be written.") from error


def device(config: Config) -> str:
    """ "cpu" or a CUDA device that is there."""
    asked = config.engine.device
    if asked == "cpu":
        return asked
    import torch

    if torch.cuda.is_available():
        index = int(asked.partition(":")[2] or 0)
        if index >= torch.cuda.device_count():
            raise ConfigError(f"{config.place('engine', 'device')} = {asked!r}: there are {torch.cuda.device_count()} GPUs, counted from 0")
        return "cuda" if asked == "auto" else asked
    if asked == "auto":
        return "cpu"
    raise ConfigError(f"{config.place('engine', 'device')} = {asked!r}: PyTorch {torch.__version__} sees no GPU. Install a CUDA build of it, or choose 'cpu'.")


def check_memory(config: Config, where: str) -> None:
    """Raises ConfigError for a share of the GPU's memory where there is none to share."""
    if where == "cpu" and config.is_given("block_allocator", "memory_utilization"):
        raise ConfigError(
            f"{config.place('block_allocator', 'memory_utilization')} = {config.block_allocator.memory_utilization:g}: it is a part of a GPU's memory, "
            "and the device is 'cpu', whose pool is what the requests need. Remove the key, or set num_blocks."
        )


def threads(config: Config) -> int:
    """As asked, or the cores that this process may use: those that it may run on, and no more than its control group is given time for.

    Raises ConfigError for many more than the cores that it may run on.
    """
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if asked := config.engine.threads:
        if asked > MAX_THREADS_OF_CORE * there:
            raise ConfigError(
                f"{config.place('engine', 'threads')} = {asked}: this process may run on {there} core{'s' * (there > 1)}, and threads that share one wait for "
                f"each other. At most {MAX_THREADS_OF_CORE} for each core are accepted; leave it at 0 for one each."
            )
        return asked
    return min(there, cores_of_group(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")) or there)


def cores_of_group(root: Path, membership: Path) -> int | None:
    """Cores that the control group of this process, and each one above it, is given time for, rounded up; None: without bound.

    Version 2 says "quota period" in cpu.max, version 1 the same in two files of the controller cpu. A container sees its own
    group as the root, whatever its membership says.
    """
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        lines = []
    quotas = [_quota(root), _quota(root / "cpu")]
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers in ("", "cpu", "cpu,cpuacct"):
            inner = Path(path.lstrip("/"))
            mounts = (root, root / "unified") if not controllers else (root / "cpu",)
            quotas += [_quota(mount / folder) for mount in mounts for folder in (inner, *inner.parents)]
    bounds = [-(-quota // period) for quota, period in (found for found in quotas if found is not None)]
    return max(1, min(bounds)) if bounds else None


def _quota(group: Path) -> tuple[int, int] | None:
    """(microseconds of processor time, per so many) of one group; None: no such group, or without bound."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = (group / "cpu.cfs_quota_us").read_text(), (group / "cpu.cfs_period_us").read_text()
        return (int(quota), int(period)) if int(quota) > 0 and int(period) > 0 else None
    except (OSError, ValueError):  # "max", or no such file
        return None


def thread_pool(num_threads: int) -> ThreadPool | None:
    """The rank's threads for native code; None where corekit was installed without."""
    from corekit.worker.pool import open_pool

    return open_pool(num_threads)


def first_quantization(config: Config, source: WeightSource) -> str:
    """What the model is offered. "auto": packed weights as the file has them, unless a dtype was asked for, which unpacked weights are in."""
    asked = config.model.quantization
    if asked != "auto":
        return asked
    return "stored" if isinstance(source, SupportsStored) and config.model.dtype == "auto" else "none"


def final_quantization(config: Config, model: Model, provider: str) -> str:
    """What the model computes on. Raises ConfigError when the configuration insists on what it cannot do."""
    computed, asked = model.quantization if isinstance(model, SupportsQuantization) else "none", config.model.quantization
    if asked not in ("auto", computed):
        raise ConfigError(
            f"{config.place('model', 'quantization')} = {asked!r}: {provider} computes on {computed!r} weights here. Leave it at 'auto', "
            "or choose a provider that can ([model] use); without this key, `corekit check` says why others were passed over."
        )
    return computed


def first_dtype(config: Config, where: str, source: WeightSource) -> str:
    """In what the model is built: as asked, else the checkpoint's own type on a GPU, and on a CPU bfloat16 if it computes in that, or float32."""
    if config.model.dtype != "auto":
        return config.model.dtype
    if where == "cpu":
        from corekit.worker.pool import computes_bfloat16

        return "bfloat16" if source.format != "none" and computes_bfloat16() else "float32"
    own = str(source.config.get("dtype") or source.config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    return own if own in ("float32", "bfloat16", "float16") else "bfloat16"


def final_dtypes(config: Config, spec: ModelSpec, built: str) -> tuple[str, str]:
    """(dtype, kv_dtype): the model may insist on one; raises ConfigError when the configuration insists on another."""
    asked, asked_kv = config.model.dtype, config.block_allocator.kv_dtype
    if spec.dtype is None:
        return built, built if asked_kv == "auto" else asked_kv
    problems = [
        f"{config.place(*path)} = {value!r}: {spec.architecture} computes in {spec.dtype} only. Leave it at 'auto'."
        for path, value in ((("model", "dtype"), asked), (("block_allocator", "kv_dtype"), asked_kv))
        if value not in ("auto", spec.dtype)
    ]
    if problems:
        raise ConfigError(problems)
    return spec.dtype, spec.dtype


def max_model_len(config: Config, spec: ModelSpec) -> int:
    """As asked, or the model's own context; never more than that."""
    asked = config.model.max_model_len
    if asked > spec.context_length:
        raise ConfigError(
            f"{config.place('model', 'max_model_len')} = {asked}: the context of {spec.architecture} is {spec.context_length} tokens. "
            "Ask for at most that, or leave it out."
        )
    return asked or spec.context_length


def step_limits(config: Config, device: str) -> StepLimits:
    """The budget of a step. On a CPU its own is small, and one prompt gets half of it: everybody else's next token waits for the step."""
    budget, threshold = config.scheduler.max_num_batched_tokens, config.scheduler.long_prefill_token_threshold
    if budget:
        return StepLimits(budget, threshold)
    if device != "cpu":
        return StepLimits(GPU_BUDGET, threshold)
    return StepLimits(CPU_BUDGET, threshold or CPU_BUDGET // 2)
