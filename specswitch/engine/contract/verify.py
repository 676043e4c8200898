"""Hold the contract's pieces against SGLang's sources."""

from __future__ import annotations

import difflib
import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from specswitch.engine.contract.pieces import Kind, Piece, Use
from specswitch.engine.contract.sources import Class, Module, Signature, SourceTree, signature

_GONE = "is gone"
_ARGUMENT_GROUPS = "sglang.srt.arg_groups.fields"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A piece that SGLang's sources do not have as the contract states it."""

    piece: Piece
    problem: str
    """What is wrong, to follow the piece's path: "is gone", "lost the parameter 'batch'"..."""

    def __str__(self) -> str:
        return f"{self.piece.path} {self.problem}"


def verify(tree: SourceTree, pieces: Iterable[Piece]) -> tuple[Mismatch, ...]:
    """Check ``pieces`` by parsing the sources; nothing of SGLang or torch is imported.

    Methods and attributes are looked up along the base classes and mixins that live inside SGLang.  What
    several rows find wrong with one piece is reported once.
    """
    with _collector_paused():
        return _mismatches(tree, tuple(pieces))


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Parsing makes hundreds of thousands of nodes that all stay; looking for garbage among them doubles the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _mismatches(tree: SourceTree, wanted: tuple[Piece, ...]) -> tuple[Mismatch, ...]:
    stated = frozenset(piece.name.rsplit(".", 1)[-1] for piece in wanted)
    found: dict[tuple[str, str], Mismatch] = {}
    for piece in wanted:
        problem = _problem(tree, piece)
        if problem is not None and (piece.path, problem) not in found:
            hint = _new_name(tree, piece, stated) if problem == _GONE else ""
            found[piece.path, problem] = Mismatch(piece, problem + hint)
    return tuple(found.values())


def _problem(tree: SourceTree, piece: Piece) -> str | None:
    try:
        module = tree.module(piece.module)
        if module is None:
            return f"is gone, there is no module {piece.module}"
        if "." in piece.name:
            return _member_problem(module, piece)
        return _name_problem(module, piece)
    except SyntaxError as error:
        return f"cannot be checked, this Python does not parse {error.filename}"


def _name_problem(module: Module, piece: Piece) -> str | None:
    if not module.defines(piece.name):
        return _GONE
    if piece.kind is Kind.CONSTANT:
        return None
    found = module.find(piece.name)
    if piece.kind is Kind.CLASS:
        if not isinstance(found, Class):
            return "is no longer a class"
        if piece.args or piece.keywords:
            constructor = found.constructor()
            return "has no readable constructor" if constructor is None else _signature_problem(constructor, piece)
        return None
    if found is None or isinstance(found, Class):
        return "is no longer a function"
    return _signature_problem(signature(found, bound=False), piece)


def _member_problem(module: Module, piece: Piece) -> str | None:
    class_name, member = piece.name.split(".", 1)
    owner = module.find(class_name)
    if not isinstance(owner, Class):
        return f"is gone, {piece.module} has no class {class_name}"
    if piece.kind is Kind.METHOD:
        return _method_problem(owner, member, piece)
    if piece.kind is Kind.ENUM_MEMBER:
        return None if owner.has_class_level(member) else _GONE
    if piece.kind is Kind.SERVER_ARGUMENT:
        groups = module.classes_imported_from(_ARGUMENT_GROUPS)
        declared = owner.has_attribute(member) or any(group.has_attribute(member) for group in groups)
        return None if declared else _GONE
    if not owner.has_attribute(member):
        return "is a method now" if owner.is_method(member) else _GONE
    return owner.refuses_write(member) if Use.WRITE in piece.use else None


def _method_problem(owner: Class, name: str, piece: Piece) -> str | None:
    function = owner.method(name)
    if function is None:
        return "is no longer a method" if owner.has_attribute(name) else _GONE
    if not owner.is_method(name):
        return "is a property now"
    problem = _signature_problem(signature(function, bound=True), piece)
    if problem is not None:
        return problem
    for caller in piece.called_in:
        if not owner.refers_to(caller, name):
            return f"is no longer called in {caller}"
    return None


def _signature_problem(found: Signature, piece: Piece) -> str | None:
    for place, name in enumerate(piece.args):
        if name not in found.positional:
            return f"lost the parameter '{name}'" if name not in found.names else f"takes '{name}' by name only now"
        if found.positional.index(name) != place:
            return f"takes the parameter '{name}' in another place"
    for name in piece.keywords:
        if name not in found.names:
            return f"lost the parameter '{name}'"
    if Use.CALL in piece.use:
        unknown = sorted(found.required - set(piece.args) - set(piece.keywords))
        if unknown:
            return f"needs the new parameter '{unknown[0]}'"
    return None


def _new_name(tree: SourceTree, piece: Piece, stated: frozenset[str]) -> str:
    """What the piece may be called now: a similar name beside it that the contract does not know."""
    module = tree.module(piece.module)
    if module is None:
        return ""
    there: Iterable[str] = module.names
    if "." in piece.name:
        owner = module.find(piece.name.split(".", 1)[0])
        if not isinstance(owner, Class):
            return ""
        there = owner.method_names if piece.kind is Kind.METHOD else owner.attribute_names
    name = piece.name.rsplit(".", 1)[-1]
    similar = difflib.get_close_matches(name, sorted(set(there) - stated), n=1, cutoff=0.7)
    return f" (similar name there: {similar[0]})" if similar else ""
