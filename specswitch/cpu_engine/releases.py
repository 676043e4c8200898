"""What each SGLang release needs to run on a CPU: pins, environment, arguments, speculative modes.

Standard library only, because :mod:`specswitch.cpu_engine.install` reads it before anything is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import MappingProxyType

HERE = Path(__file__).parent
DEFAULT_MODELS = HERE / "models"
"""Holds one directory per model: ``target``, ``eagle``, ``eagle3``, ``draft``."""

ArgumentValue = bool | int | float | str
Arguments = Mapping[str, ArgumentValue]
"""``ServerArgs`` fields by name."""


@dataclass(frozen=True, slots=True, eq=False)
class SpeculativeMode:
    """One way to decode: plain, or one of SGLang's speculative algorithms with its draft model."""

    name: str
    arguments: Arguments = field(default_factory=dict)
    draft: str | None = None
    """Directory of the draft model below the models directory."""
    overlap: bool | None = None
    """Whether this mode is an overlap one; None when it runs both ways."""
    worker: str = ""
    """Class name of SGLang's speculative worker without overlap (where both exist); empty for plain."""
    paged_arguments: Arguments = field(default_factory=dict)
    """Further arguments for a page size above 1."""
    paged: bool = True
    """Whether SGLang accepts a page size above 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """An SGLang release and how it runs without a GPU."""

    version: str
    shim: tuple[str, ...]
    """Directories below ``shim/`` that must come first on PYTHONPATH."""
    modes: Mapping[str, SpeculativeMode]
    arguments: Arguments
    """``ServerArgs`` every CPU process needs."""
    environment: Mapping[str, str]
    strict_environment: Mapping[str, str]
    """SGLang's own memory checks and asserts, for tests."""
    torch: str = "2.13.0"

    @property
    def pins(self) -> Path:
        """The exact versions of everything but torch, SGLang and this project."""
        return HERE / "pins" / f"{self.version}.txt"

    def mode(self, name: str) -> SpeculativeMode:
        """The mode of that name; ``ValueError`` with the names that exist otherwise."""
        try:
            return self.modes[name]
        except KeyError:
            raise ValueError(
                f"SGLang {self.version} on the CPU has no mode {name!r}; choose one of {', '.join(self.modes)}"
            ) from None

    def server_arguments(
        self, mode: str, models: Path = DEFAULT_MODELS, *, overlap: bool | None = None, page_size: int = 1
    ) -> dict[str, ArgumentValue]:
        """``ServerArgs`` for ``mode``: CPU needs, model paths, the mode's own.

        ``overlap`` None takes the mode's own way, or no overlap where it runs both ways.  Raises ``ValueError`` for a
        mode, an overlap or a page size that SGLang cannot run.
        """
        chosen = self.mode(mode)
        if overlap is None:
            overlap = bool(chosen.overlap)
        elif chosen.overlap is not None and chosen.overlap != overlap:
            raise ValueError(f"mode {mode!r} of SGLang {self.version} always runs with overlap={chosen.overlap}")
        if page_size > 1 and not chosen.paged:
            raise ValueError(f"mode {mode!r} of SGLang {self.version} runs with page_size=1 only, not {page_size}")
        arguments: dict[str, ArgumentValue] = {**self.arguments, "model_path": str(models / "target")}
        arguments.update(chosen.arguments)
        if chosen.draft is not None:
            arguments["speculative_draft_model_path"] = str(models / chosen.draft)
        if page_size > 1:
            arguments.update(chosen.paged_arguments)
        arguments["page_size"] = page_size
        arguments["disable_overlap_schedule"] = not overlap
        return arguments


def as_flags(arguments: Mapping[str, ArgumentValue]) -> list[str]:
    """``ServerArgs`` fields as the launcher's flags: True becomes a bare flag, False none."""
    flags: list[str] = []
    for name, value in arguments.items():
        if value is False:
            continue
        flags.append("--" + name.replace("_", "-"))
        if value is not True:
            flags.append(str(value))
    return flags


def installed_release() -> Release:
    """The release of the SGLang installed here; ``RuntimeError`` when there is none or it is not in the table."""
    try:
        version = metadata.version("sglang")
    except metadata.PackageNotFoundError:
        raise RuntimeError(
            "SGLang is not installed in this environment; run this with the Python of one that `make setup` made"
        ) from None
    return release(version)


def release(version: str) -> Release:
    """The table's entry for that version; ``RuntimeError`` when there is none."""
    try:
        return RELEASES[version]
    except KeyError:
        raise RuntimeError(
            f"the CPU engine knows SGLang {', '.join(RELEASES)}, not {version}; install one of these to use it"
        ) from None


def _chain(algorithm: str, topk: int, draft_tokens: int) -> Arguments:
    return {
        "speculative_algorithm": algorithm,
        "speculative_num_steps": 3,
        "speculative_eagle_topk": topk,
        "speculative_num_draft_tokens": draft_tokens,
    }


def _ngram(draft_tokens: int) -> Arguments:
    return {
        "speculative_algorithm": "NGRAM",
        "speculative_num_draft_tokens": draft_tokens,
        # SGLang's default of ten million nodes takes seconds to set up
        "speculative_ngram_capacity": 100_000,
    }


_NGRAM_CHAIN: Arguments = {"speculative_ngram_max_bfs_breadth": 1, "speculative_ngram_min_bfs_breadth": 1}
"""With pages SGLang takes drafts without branches only."""


def _by_name(*modes: SpeculativeMode) -> Mapping[str, SpeculativeMode]:
    return MappingProxyType({mode.name: mode for mode in modes})


_COMMON_ARGUMENTS: Arguments = MappingProxyType(
    {
        "device": "cpu",
        "dtype": "float32",
        "sampling_backend": "pytorch",
        "grammar_backend": "xgrammar",
        "context_length": 1024,
        "max_total_tokens": 4096,
        "max_running_requests": 8,
        "random_seed": 1,
        "watchdog_timeout": 300,
    }
)

_COMMON_ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    {
        "SGLANG_USE_CPU_ENGINE": "1",
        # SGLang's Triton kernels run on CPU tensors through Triton's interpreter
        "TRITON_INTERPRET": "1",
        # with two threads on two cores a step was 50 to 70 times slower
        "OMP_NUM_THREADS": "1",
        # torch.compile costs 16 s at the first speculative request and gains nothing here
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
)

_STRICT_0_5_12: Mapping[str, str] = MappingProxyType(
    {
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
    }
)

_STRICT_0_5_17: Mapping[str, str] = MappingProxyType(
    {
        **_STRICT_0_5_12,
        "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
        # turns on FutureMap's poison asserts (managers/overlap_utils.py)
        "SGLANG_IS_IN_CI": "true",
    }
)

_CSTDDEF = "c++ -include cstddef"
"""A header of NGRAM's C++ extension (speculative/cpp_ngram) uses size_t without <cstddef>, which g++ 12 refuses."""


def _modes_0_5_12() -> Mapping[str, SpeculativeMode]:
    """v1 workers run without overlap, v2 workers with it; NGRAM turns overlap off by itself."""

    def v1(name: str, algorithm: str, draft: str, topk: int, tokens: int, worker: str) -> SpeculativeMode:
        # server_args.py:3839 refuses topk > 1 with pages unless the attention backend is flashinfer or fa3
        return SpeculativeMode(name, _chain(algorithm, topk, tokens), draft, False, worker, paged=topk == 1)

    def v2(name: str, algorithm: str, draft: str, worker: str) -> SpeculativeMode:
        return SpeculativeMode(name, _chain(algorithm, 1, 4), draft, True, worker)

    return _by_name(
        SpeculativeMode("plain", overlap=True),
        SpeculativeMode("plain-no-overlap", overlap=False),
        v1("eagle-topk1-v1", "EAGLE", "eagle", 1, 4, "EAGLEWorker"),
        v1("eagle-topk4-v1", "EAGLE", "eagle", 4, 8, "EAGLEWorker"),
        v1("eagle3-v1", "EAGLE3", "eagle3", 1, 4, "EAGLEWorker"),
        v1("eagle3-topk4-v1", "EAGLE3", "eagle3", 4, 8, "EAGLEWorker"),
        v2("eagle-v2", "EAGLE", "eagle", "EAGLEWorkerV2"),
        v2("eagle3-v2", "EAGLE3", "eagle3", "EAGLEWorkerV2"),
        v1("standalone-v1", "STANDALONE", "draft", 1, 4, "StandaloneWorker"),
        v2("standalone-v2", "STANDALONE", "draft", "StandaloneWorkerV2"),
        SpeculativeMode(
            "ngram",
            _ngram(draft_tokens=4),
            overlap=False,
            worker="NGRAMWorker",
            paged_arguments=_NGRAM_CHAIN,
        ),
    )


def _modes_0_5_17() -> Mapping[str, SpeculativeMode]:
    """0.5.13 and later have the v2 workers alone, each with and without overlap."""

    def chain(name: str, algorithm: str, draft: str, topk: int, tokens: int, worker: str) -> SpeculativeMode:
        # the CPU backend refuses topk > 1 with pages
        return SpeculativeMode(name, _chain(algorithm, topk, tokens), draft, worker=worker, paged=topk == 1)

    return _by_name(
        SpeculativeMode("plain"),
        chain("eagle-topk1", "EAGLE", "eagle", 1, 4, "EAGLEWorkerV2"),
        chain("eagle-topk4", "EAGLE", "eagle", 4, 8, "EAGLEWorkerV2"),
        chain("eagle3-topk1", "EAGLE3", "eagle3", 1, 4, "EAGLEWorkerV2"),
        chain("eagle3-topk4", "EAGLE3", "eagle3", 4, 8, "EAGLEWorkerV2"),
        chain("standalone-topk1", "STANDALONE", "draft", 1, 4, "StandaloneWorkerV2"),
        chain("standalone-topk2", "STANDALONE", "draft", 2, 6, "StandaloneWorkerV2"),
        SpeculativeMode(
            "ngram",
            _ngram(draft_tokens=8),
            worker="NGRAMWorker",
            paged_arguments=_NGRAM_CHAIN,
        ),
    )


_ARGUMENTS_0_5_17: Arguments = MappingProxyType(
    {
        **_COMMON_ARGUMENTS,
        "attention_backend": "intel_amx",
        "cuda_graph_backend_decode": "disabled",
        "cuda_graph_backend_prefill": "disabled",
    }
)

RELEASES: Mapping[str, Release] = MappingProxyType(
    {
        entry.version: entry
        for entry in (
            Release(
                version="0.5.12.post1",
                shim=("v0_5_12", "common"),
                modes=_modes_0_5_12(),
                arguments=MappingProxyType(
                    {
                        **_COMMON_ARGUMENTS,
                        "attention_backend": "triton",
                        "disable_cuda_graph": True,
                        "disable_piecewise_cuda_graph": True,
                        "mem_fraction_static": 0.5,
                    }
                ),
                environment=MappingProxyType({**_COMMON_ENVIRONMENT, "CXX": _CSTDDEF}),
                strict_environment=_STRICT_0_5_12,
            ),
            Release(
                version="0.5.17",
                shim=("v0_5_17", "common"),
                modes=_modes_0_5_17(),
                arguments=_ARGUMENTS_0_5_17,
                environment=MappingProxyType({**_COMMON_ENVIRONMENT, "CXX": _CSTDDEF}),
                strict_environment=_STRICT_0_5_17,
            ),
            Release(
                version="0.5.23",
                shim=("v0_5_17", "common"),
                modes=_modes_0_5_17(),
                arguments=_ARGUMENTS_0_5_17,
                environment=_COMMON_ENVIRONMENT,
                strict_environment=_STRICT_0_5_17,
            ),
        )
    }
)
