"""Read SGLang's Python sources without importing them.

A :class:`SourceTree` answers questions about names - is there such a function, with which parameters,
does a class ever assign such an attribute - by parsing only the files that the answer needs, from a
folder or straight out of a wheel.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_RECORD_BASES = {"NamedTuple", "Struct"}
_PROPERTY_DECORATORS = {"property", "cached_property"}


@dataclass(frozen=True, slots=True)
class Import:
    """``from module import name``, or ``import module`` when ``name`` is None."""

    module: str
    name: str | None


Binding: TypeAlias = "ast.ClassDef | FunctionNode | Import | ast.expr | None"
"""What a module-level name is bound to; None where the value says nothing."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of a function, ``self`` and ``cls`` left out."""

    positional: tuple[str, ...]
    keyword_only: tuple[str, ...]
    required: frozenset[str]

    @property
    def names(self) -> frozenset[str]:
        """Every parameter that can be given by name."""
        return frozenset(self.positional + self.keyword_only)


class SourceTree:
    """SGLang's sources below ``where``; ``read`` gives a file's text by its path, or None."""

    def __init__(self, where: str, read: Callable[[str], bytes | None]) -> None:
        self.where = where
        self._read = read
        self._modules: dict[str, Module | None] = {}

    @classmethod
    def folder(cls, root: Path) -> SourceTree:
        """The folder that holds the ``sglang`` package."""

        def read(path: str) -> bytes | None:
            try:
                return (root / path).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

        return cls(str(root), read)

    @classmethod
    def wheel(cls, archive: zipfile.ZipFile) -> SourceTree:
        """An open wheel."""

        def read(path: str) -> bytes | None:
            try:
                return archive.read(path)
            except KeyError:
                return None

        return cls(str(archive.filename), read)

    def module(self, name: str) -> Module | None:
        """The parsed module, or None where there is no such file.

        Raises:
            SyntaxError: this Python cannot parse the file.
        """
        if name not in self._modules:
            stem = name.replace(".", "/")
            self._modules[name] = None
            for path, package in ((f"{stem}.py", False), (f"{stem}/__init__.py", True)):
                text = self._read(path)
                if text is not None:
                    self._modules[name] = Module(self, name, package, ast.parse(text, path))
                    break
        return self._modules[name]


@dataclass(eq=False)
class Module:
    """One parsed module."""

    tree: SourceTree
    name: str
    is_package: bool
    node: ast.Module
    _found: dict[str, Class | FunctionNode | None] = field(default_factory=dict, repr=False)
    _classes: dict[int, Class] = field(default_factory=dict, repr=False)

    @cached_property
    def _bound(self) -> tuple[dict[str, list[Binding]], list[str]]:
        names: dict[str, list[Binding]] = {}
        stars: list[str] = []
        for statement in _run_on_import(self.node.body):
            match statement:
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    names.setdefault(statement.name, []).append(statement)
                case ast.ImportFrom():
                    source = self._absolute(statement)
                    for alias in statement.names:
                        if alias.name == "*":
                            stars.append(source)
                        else:
                            names.setdefault(alias.asname or alias.name, []).append(Import(source, alias.name))
                case ast.Import():
                    for alias in statement.names:
                        bound = alias.asname or alias.name.split(".")[0]
                        target = alias.name if alias.asname else bound
                        names.setdefault(bound, []).append(Import(target, None))
                case ast.Assign():
                    for target_node in statement.targets:
                        if isinstance(target_node, ast.Name):
                            names.setdefault(target_node.id, []).append(statement.value)
                case ast.AnnAssign(target=ast.Name(id=bound)) if statement.value is not None:
                    names.setdefault(bound, []).append(statement.value)
        return names, stars

    def _absolute(self, statement: ast.ImportFrom) -> str:
        if not statement.level:
            return statement.module or ""
        package = self.name.split(".") if self.is_package else self.name.split(".")[:-1]
        package = package[: len(package) - (statement.level - 1)]
        return ".".join([*package, *([statement.module] if statement.module else [])])

    def defines(self, name: str, _seen: frozenset[str] = frozenset()) -> bool:
        """Whether the module binds ``name`` when imported, itself or by a star import."""
        names, stars = self._bound
        if name in names:
            return True
        if name.startswith("_"):
            return False
        others = (self.tree.module(star) for star in stars if star not in _seen)
        return any(other is not None and other.defines(name, _seen | {self.name}) for other in others)

    @property
    def names(self) -> Iterator[str]:
        """Every name the module binds itself."""
        return iter(self._bound[0])

    def classes_imported_from(self, package: str) -> Iterator[Class]:
        """The classes that this module imports from modules of ``package``."""
        for bindings in self._bound[0].values():
            for binding in bindings:
                if isinstance(binding, Import) and binding.module.startswith(f"{package}."):
                    found = self._follow(binding, frozenset())
                    if isinstance(found, Class):
                        yield found

    def find(self, name: str) -> Class | FunctionNode | None:
        """The class or function that ``name`` means here, followed through imports and aliases."""
        if name not in self._found:
            self._found[name] = self._search(name, frozenset())
        return self._found[name]

    def _search(self, name: str, seen: frozenset[tuple[str, str]]) -> Class | FunctionNode | None:
        if (self.name, name) in seen:
            return None
        seen = seen | {(self.name, name)}
        names, stars = self._bound
        for binding in names.get(name, ()):
            found = self._follow(binding, seen)
            if found is not None:
                return found
        for star in () if name.startswith("_") else stars:
            other = self.tree.module(star)
            if other is not None and (found := other._search(name, seen)) is not None:
                return found
        return None

    def _follow(self, binding: Binding, seen: frozenset[tuple[str, str]]) -> Class | FunctionNode | None:
        match binding:
            case ast.ClassDef():
                return self._classes.setdefault(id(binding), Class(self, binding))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return binding
            case Import(module=source, name=str(original)):
                other = self.tree.module(source)
                return other._search(original, seen) if other is not None else None
            case ast.Name(id=alias):
                return self._search(alias, seen)
        return None

    def find_expression(self, node: ast.expr) -> Class | FunctionNode | None:
        """What an expression such as ``Base``, ``module.Base`` or ``Base[T]`` means here."""
        match node:
            case ast.Subscript(value=value):
                return self.find_expression(value)
            case ast.Name(id=name):
                return self.find(name)
            case ast.Attribute(value=ast.Name(id=prefix), attr=name):
                for binding in self._bound[0].get(prefix, ()):
                    if isinstance(binding, Import):
                        source = binding.module if binding.name is None else f"{binding.module}.{binding.name}"
                        other = self.tree.module(source)
                        if other is not None:
                            return other.find(name)
        return None


@dataclass(eq=False)
class Class:
    """A class, with what it inherits from other classes of SGLang."""

    module: Module
    node: ast.ClassDef

    @cached_property
    def lineage(self) -> tuple[Class, ...]:
        """This class and its bases inside SGLang, depth first, each once."""
        found: dict[tuple[str, str], Class] = {}
        self._collect(found)
        return tuple(found.values())

    def _collect(self, found: dict[tuple[str, str], Class]) -> None:
        key = (self.module.name, self.node.name)
        if key in found:
            return
        found[key] = self
        for base in self.node.bases:
            parent = self.module.find_expression(base)
            if isinstance(parent, Class):
                parent._collect(found)

    def method(self, name: str) -> FunctionNode | None:
        """The method that a call would reach; the last definition in a class body counts."""
        for cls in self.lineage:
            function = cls._functions.get(name)
            if function is not None:
                return function[-1]
        return None

    @cached_property
    def _functions(self) -> dict[str, list[FunctionNode]]:
        functions: dict[str, list[FunctionNode]] = {}
        for statement in _run_on_import(self.node.body):
            if isinstance(statement, _FUNCTION):
                functions.setdefault(statement.name, []).append(statement)
        return functions

    @cached_property
    def _class_level(self) -> frozenset[str]:
        names: set[str] = set()
        for statement in _run_on_import(self.node.body):
            match statement:
                case ast.Assign():
                    for target in statement.targets:
                        names.update(node.id for node in ast.walk(target) if isinstance(node, ast.Name))
                        if isinstance(target, ast.Name) and target.id == "__slots__":
                            names.update(_strings(statement.value))
                case ast.AnnAssign(target=ast.Name(id=name)):
                    names.add(name)
        return frozenset(names)

    @cached_property
    def _instance_level(self) -> frozenset[str]:
        names: set[str] = set()
        for node in ast.walk(self.node):
            match node:
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    names.add(name)
                case ast.Call(
                    func=ast.Name(id="setattr") | ast.Attribute(attr="__setattr__"),
                    args=[ast.Name(id="self"), ast.Constant(value=str(name)), *_],
                ):
                    names.add(name)
        return frozenset(names)

    @property
    def method_names(self) -> frozenset[str]:
        """Every method name, inherited ones included."""
        return frozenset().union(*(cls._functions.keys() for cls in self.lineage))

    @property
    def attribute_names(self) -> frozenset[str]:
        """Every attribute name, inherited ones included."""
        return frozenset().union(*(cls._class_level | cls._instance_level for cls in self.lineage))

    def has_attribute(self, name: str) -> bool:
        """Whether an instance can have ``name``: assigned, declared, or a property."""
        return any(name in cls._class_level or name in cls._instance_level for cls in self.lineage) or (
            self._property(name) is not None
        )

    def has_class_level(self, name: str) -> bool:
        """Whether a class body binds ``name``; so do enum members."""
        return any(name in cls._class_level for cls in self.lineage)

    def is_method(self, name: str) -> bool:
        """Whether ``name`` is a method and not a property."""
        return self.method(name) is not None and self._property(name) is None

    def _property(self, name: str) -> list[FunctionNode] | None:
        for cls in self.lineage:
            functions = cls._functions.get(name)
            if functions is not None:
                is_property = any(_decorator_names(function) & _PROPERTY_DECORATORS for function in functions)
                return functions if is_property else None
        return None

    def refuses_write(self, name: str) -> str | None:
        """Why ``instance.name = value`` would fail, or None."""
        functions = self._property(name)
        if functions is not None and not any(name in cls._instance_level for cls in self.lineage):
            decorators = set().union(*(_decorator_names(function) for function in functions))
            if "setter" not in decorators and "cached_property" not in decorators:
                return "is a property without a setter"
        return f"cannot be set, {self.node.name} is frozen" if self._declares_frozen else None

    @property
    def _declares_frozen(self) -> bool:
        calls = [node for node in self.node.decorator_list if isinstance(node, ast.Call)]
        flags = [keyword for call in calls for keyword in call.keywords] + self.node.keywords
        frozen = any(
            flag.arg == "frozen" and isinstance(flag.value, ast.Constant) and flag.value.value is True for flag in flags
        )
        return frozen or "NamedTuple" in _base_names(self.node)

    def refers_to(self, method: str, name: str) -> bool:
        """Whether ``method`` reads ``something.name``."""
        function = self.method(method)
        return function is not None and any(
            isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load)
            for node in ast.walk(function)
        )

    def constructor(self) -> Signature | None:
        """The parameters of ``Class(...)``, or None where the sources do not say."""
        for cls in self.lineage:
            initialiser = cls._functions.get("__init__")
            if initialiser is not None:
                return signature(initialiser[-1], bound=True)
            if cls._is_record:
                return cls._record_signature()
        return None

    def _record_signature(self) -> Signature:
        fields: dict[str, bool] = {}
        keyword_only: set[str] = set()
        for cls in reversed(self.lineage):
            if not cls._is_record:
                continue
            for statement in _run_on_import(cls.node.body):
                match statement:
                    case ast.AnnAssign(target=ast.Name(id=name)) if not _is_class_variable(statement):
                        if _is_left_out_of_init(statement.value):
                            fields.pop(name, None)
                            continue
                        fields[name] = not _has_default(statement.value)
                        if cls._declares_keyword_only:
                            keyword_only.add(name)
        return Signature(
            tuple(name for name in fields if name not in keyword_only),
            tuple(name for name in fields if name in keyword_only),
            frozenset(name for name, required in fields.items() if required),
        )

    @property
    def _is_record(self) -> bool:
        """Whether the class makes its constructor from its fields: a dataclass, named tuple or msgspec struct."""
        if "dataclass" in _decorator_names(self.node):
            return True
        return any(_base_names(cls.node) & _RECORD_BASES for cls in self.lineage)

    @property
    def _declares_keyword_only(self) -> bool:
        calls = [node for node in self.node.decorator_list if isinstance(node, ast.Call)]
        flags = [keyword for call in calls for keyword in call.keywords] + self.node.keywords
        return any(
            flag.arg == "kw_only" and isinstance(flag.value, ast.Constant) and flag.value.value is True
            for flag in flags
        )


def signature(function: FunctionNode, *, bound: bool) -> Signature:
    """The parameters of ``function``; ``bound`` leaves out the first one unless it is a static method."""
    arguments = function.args
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    without_default = positional[: len(positional) - len(arguments.defaults)]
    if bound and "staticmethod" not in _decorator_names(function):
        positional, without_default = positional[1:], without_default[1:]
    keyword_only = [argument.arg for argument in arguments.kwonlyargs]
    required_by_name = [
        name for name, default in zip(keyword_only, arguments.kw_defaults, strict=True) if default is None
    ]
    return Signature(tuple(positional), tuple(keyword_only), frozenset([*without_default, *required_by_name]))


def _run_on_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body that run when it is imported, whichever branch is taken."""
    for statement in body:
        yield statement
        match statement:
            case ast.If():
                if not _is_type_checking(statement.test):
                    yield from _run_on_import(statement.body)
                yield from _run_on_import(statement.orelse)
            case ast.Try():
                yield from _run_on_import(statement.body)
                for handler in statement.handlers:
                    yield from _run_on_import(handler.body)
                yield from _run_on_import(statement.orelse)
                yield from _run_on_import(statement.finalbody)
            case ast.With() | ast.For() | ast.While():
                yield from _run_on_import(statement.body)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _last_name(node: ast.expr) -> str | None:
    match node:
        case ast.Call(func=function):
            return _last_name(function)
        case ast.Subscript(value=value):
            return _last_name(value)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return None


def _decorator_names(node: ast.ClassDef | FunctionNode) -> set[str]:
    return {name for decorator in node.decorator_list if (name := _last_name(decorator))}


def _base_names(node: ast.ClassDef) -> set[str]:
    return {name for base in node.bases if (name := _last_name(base))}


def _strings(node: ast.expr) -> set[str]:
    return {item.value for item in ast.walk(node) if isinstance(item, ast.Constant) and isinstance(item.value, str)}


def _is_class_variable(statement: ast.AnnAssign) -> bool:
    return _last_name(statement.annotation) == "ClassVar"


def _is_left_out_of_init(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and any(
        keyword.arg == "init" and isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        for keyword in value.keywords
    )


def _has_default(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call) and _last_name(value) == "field":
        return any(keyword.arg in {"default", "default_factory"} for keyword in value.keywords) or bool(value.args)
    return value is not None
