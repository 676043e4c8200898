"""The contract's table states what the engine's code does: nothing more, nothing less.

The code is parsed, not imported.  What an attribute belongs to cannot be told without types, so the check is by
name: whatever the code touches on an object of SGLang's must be a row of the module that touches it.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

import specswitch
from specswitch.engine.contract import RELEASE_LINES, Kind, Need, Piece, Use

PACKAGE = Path(specswitch.__file__).parent
NOT_THE_ENGINE = {"cpu_engine", "cli", "contract", "__pycache__"}
"""``cpu_engine`` is the embedded SGLang of demo and tests, pinned to the releases that it patches."""

SGLANGS_OWN = {
    *("scheduler", "batch", "last", "req", "result", "target", "server_args", "future_map", "future_indices"),
    *("worker", "worker_batch", "draft_input", "draft_worker", "params", "penalizer", "orchestrator", "sampling_info"),
    *("model_runner", "runner", "model_config", "plan", "reply", "allocator", "tree_cache"),
}
"""Variables that hold objects of SGLang's throughout the engine: all that is touched on them needs a row."""

FOREIGN = {
    name for kind in (str, list, dict, set, tuple, frozenset, bytes, Path, Exception, builtins) for name in dir(kind)
}
FOREIGN |= {
    # torch and numpy
    *(
        "arange",
        "asarray",
        "bool",
        "cat",
        "clone",
        "concatenate",
        "copy_",
        "cpu",
        "cuda",
        "cumsum",
        "current_stream",
        "get_device_module",
    ),
    *("memory_reserved", "mem_get_info", "OutOfMemoryError"),
    *("device", "dtype", "elapsed_time", "empty", "expand", "fill_", "float32", "from_numpy", "full", "index_put_"),
    *("int32", "int64", "is_available", "is_cuda", "new_empty", "numel", "numpy", "ones", "repeat", "reshape"),
    *("scatter_", "shape", "squeeze", "stack", "stream", "synchronize", "tensor", "Tensor", "to", "tolist"),
    *("argmax", "argmin", "long", "parameters", "pin_memory", "uint8"),
    *("element_size", "index_copy_", "index_fill_", "nbytes"),
    *("unsqueeze", "view", "wait_stream", "zero_", "zeros", "inference_mode", "Stream", "Event", "record"),
    # standard library
    *(
        "callback",
        "ABC",
        "abstractmethod",
        "ArgumentParser",
        "Namespace",
        "argv",
        "enter_context",
        "environ",
        "exit",
        "partial",
        "pop_all",
    ),
    *("perf_counter", "import_module", "modules", "nullcontext", "wraps", "monotonic", "__traceback__"),
}

DYNAMIC = {"graph"}
"""Namespaces of SGLang's published configuration, which answers by ``__getattr__``: no parse can see them."""


@dataclass
class Touched:
    """What one module of the code touches."""

    imports: set[tuple[str, str]] = field(default_factory=set)
    hooked: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    on_sglangs: set[str] = field(default_factory=set)
    """What is read or written directly on one of ``SGLANGS_OWN``."""
    called: dict[str, list[ast.Call]] = field(default_factory=dict)
    strings: set[str] = field(default_factory=set)

    @property
    def names(self) -> set[str]:
        return self.read | self.written | self.hooked

    @property
    def words(self) -> set[str]:
        """What stands between the dots of string constants: names that are looked up later."""
        return {part for text in self.strings for part in text.split(".")}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def own_names() -> frozenset[str]:
    """Every name that classes and modules of specswitch define."""
    names: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        if NOT_THE_ENGINE & set(path.relative_to(PACKAGE).parts[:-1]) - {"contract"}:
            continue
        tree = parsed(path)
        names.update(path.relative_to(PACKAGE).with_suffix("").parts)
        for node in ast.walk(tree):
            match node:
                case ast.ClassDef(name=name, body=body):
                    names.add(name)
                    names.update(_bound(body))
                case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                    names.add(name)
        names.update(_bound(tree.body))
    return frozenset(names)


def _bound(body: Iterable[ast.stmt]) -> set[str]:
    names: set[str] = set()
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names.update(alias.asname or alias.name for alias in aliases)
    return names


def modules() -> dict[str, Path]:
    """The modules that may touch SGLang: the engine's, the plugin's, and whichever imports it."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).parts
        if NOT_THE_ENGINE & set(parts[:-1]) or path.name == "__init__.py":
            continue
        if parts[0] in ("engine", "plugin.py") or touched(path).imports:
            found[".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts))] = path
    return found


def touched(path: Path) -> Touched:
    """What a module touches; what belongs to its own ``self`` is left out."""
    seen = Touched()
    for node in ast.walk(parsed(path)):
        match node:
            case ast.ImportFrom(module=str(source), names=aliases) if source.split(".")[0] == "sglang":
                seen.imports.update((source, alias.name) for alias in aliases)
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(value=value, attr=name):
                (seen.written if isinstance(node.ctx, ast.Store) else seen.read).add(name)
                if _is_sglangs(value):
                    seen.on_sglangs.add(name)
            case ast.Constant(value=str(text)):
                seen.strings.add(text)
        match node:
            case ast.Call(func=ast.Attribute(attr="around"), args=[_, ast.Constant(value=str(name)), *_]):
                seen.hooked.add(name)
            case ast.Call(func=ast.Attribute(attr="replace"), args=[_, ast.Constant(value=str(name)), _]):
                seen.written.add(name)
            case ast.Call(func=ast.Name(id="swapped"), args=[ast.Name(id="self")]):
                pass
            case ast.Call(func=ast.Name(id="swapped"), keywords=keywords):
                names = {keyword.arg for keyword in keywords if keyword.arg}
                seen.written |= names
                seen.on_sglangs |= names
            case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[_, ast.Constant(value=str(name)), *_]):
                seen.read.add(name)
            case ast.Call(func=ast.Name(id="setattr"), args=[_, ast.Constant(value=str(name)), *_]):
                seen.written.add(name)
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
                seen.called.setdefault(name, []).append(node)
    return seen


def _is_sglangs(value: ast.expr) -> bool:
    match value:
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name.lstrip("_") in SGLANGS_OWN
    return False


def pieces_of(module: str) -> list[Piece]:
    return [piece for line in RELEASE_LINES for need in line.needs if need.module == module for piece in need.pieces]


def last_names(pieces: Iterable[Piece]) -> set[str]:
    return {piece.name.rsplit(".", 1)[-1] for piece in pieces}


MODULES = modules()


def listed(module: str, names: Iterable[str], what: str) -> str:
    """The failure message; the rows are in specswitch/engine/contract/table/."""
    return f"{module} {what}: {', '.join(sorted(names))}"


def test_every_row_is_of_a_module_that_exists() -> None:
    needs: list[Need] = [need for line in RELEASE_LINES for need in line.needs]
    assert {need.module for need in needs} <= MODULES.keys()
    for line in RELEASE_LINES:
        assert set(line.paths.values()) <= MODULES.keys()


@pytest.mark.parametrize("module", MODULES)
def test_every_import_of_sglang_is_a_row(module: str) -> None:
    pieces = pieces_of(module)
    stated = {f"{piece.module}.{piece.name.split('.')[0]}" for piece in pieces} | {piece.module for piece in pieces}
    missing = {f"{source}.{name}" for source, name in touched(MODULES[module]).imports} - stated
    assert not missing, listed(module, missing, "imports what no row of the contract states")


@pytest.mark.parametrize("module", MODULES)
def test_every_name_touched_is_a_row(module: str) -> None:
    pieces, seen = pieces_of(module), touched(MODULES[module])
    stated = {part for piece in pieces for part in (*piece.name.split("."), piece.module.rsplit(".", 1)[-1])}
    ours = {name for name in seen.on_sglangs if name.startswith("specswitch")}
    missing = (seen.on_sglangs - stated) | (seen.names - stated - own_names() - FOREIGN - DYNAMIC)
    assert not missing - ours, listed(module, missing - ours, "touches what no row of the contract states")
    paths = {text for text in seen.strings if text.startswith("sglang.srt.") and " " not in text}
    unknown = {path for path in paths if not any(piece.path.startswith(path) for piece in pieces)}
    assert not unknown, listed(module, unknown, "names a path that no row of the contract states")


@pytest.mark.parametrize("module", MODULES)
def test_every_row_is_touched(module: str) -> None:
    seen = touched(MODULES[module])
    docstring = ast.get_docstring(parsed(MODULES[module])) or ""
    there = seen.names | {name for _, name in seen.imports} | seen.words
    idle = {name for name in last_names(pieces_of(module)) - there if name not in docstring}
    assert not idle, listed(module, idle, "does not touch what the contract states for it")


@pytest.mark.parametrize("module", MODULES)
def test_rows_state_the_use(module: str) -> None:
    pieces, seen = pieces_of(module), touched(MODULES[module])
    functions = [piece for piece in pieces if piece.kind in (Kind.METHOD, Kind.FUNCTION)]
    written = last_names(piece for piece in pieces if Use.WRITE in piece.use)
    hooked = last_names(piece for piece in functions if Use.HOOK in piece.use)
    called = last_names(piece for piece in functions if Use.CALL in piece.use)

    unstated = (seen.written & last_names(pieces)) - written - hooked
    assert not unstated, listed(module, unstated, "writes what the contract does not state as written")
    unstated = seen.hooked - hooked - own_names()
    assert not unstated, listed(module, unstated, "hooks what the contract does not state as hooked")
    idle = (written - seen.written - seen.words) | (called - seen.called.keys()) | (hooked - seen.hooked - seen.words)
    assert not idle, listed(module, idle, "does not use as stated")


@pytest.mark.parametrize("module", MODULES)
def test_calls_pass_what_the_rows_say(module: str) -> None:
    seen = touched(MODULES[module])
    by_name: dict[str, list[Piece]] = {}
    for piece in pieces_of(module):
        if Use.CALL in piece.use:
            by_name.setdefault(piece.name.rsplit(".", 1)[-1], []).append(piece)
    for name, pieces in by_name.items():
        for call in seen.called.get(name, []):
            assert any(fits(call, piece) for piece in pieces), f"{module}:{call.lineno} calls {name} in another way"


def fits(call: ast.Call, piece: Piece) -> bool:
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return True
    by_name = {keyword.arg for keyword in call.keywords if keyword.arg}
    return len(call.args) <= len(piece.args) and by_name <= {*piece.args, *piece.keywords}
