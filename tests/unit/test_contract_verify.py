"""The check of pieces against sources, on small source trees made here."""

from __future__ import annotations

import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from specswitch.engine.contract import Kind, Piece, SourceTree, Use, verify

SCHEDULER = "sglang.srt.managers.scheduler"

FILES = {
    "sglang/__init__.py": "",
    "sglang/srt/managers/scheduler.py": """
        from typing import TYPE_CHECKING

        from sglang.srt.managers.mixin import MetricsMixin
        from sglang.srt.managers import batch as batches
        from sglang.srt.managers.batch import *

        if TYPE_CHECKING:
            from sglang.srt.managers.batch import Hint

        try:
            from fast import helper
        except ImportError:
            from .batch import helper

        LIMIT = 48

        class Scheduler(MetricsMixin, batches.Base["T"]):
            label: str = "x"

            def __init__(self, server_args, *, port=None):
                self.running_batch, self.waiting_queue = None, []
                for self.turn in range(1):
                    pass
                setattr(self, "odd", 1)

            def event_loop_overlap(self):
                self.result_queue: list = []
                while self.get_next_batch_to_run():
                    self.run_batch(self.running_batch)

            def get_next_batch_to_run(self):
                return self.running_batch

            def run_batch(self, batch, pp_proxy_tensors=None):
                return helper(batch)

            @property
            def load(self):
                return 1

            @property
            def mode(self):
                return 1

            @mode.setter
            def mode(self, value):
                pass

            @staticmethod
            def make(size, *, flag):
                return size
    """,
    "sglang/srt/managers/mixin.py": """
        class MetricsMixin:
            def report_decode_stats(self, can_run_cuda_graph, running_batch=None):
                self.spec_num_forward_ct = 0
    """,
    "sglang/srt/managers/batch/__init__.py": """
        from .core import Batch, Base as Base
        from .core import helper, Frozen, Point, Message, Algorithm
        Alias = Batch
        class Hint: ...
    """,
    "sglang/srt/managers/batch/core.py": """
        import dataclasses
        from dataclasses import dataclass, field
        from enum import Enum, auto
        from typing import ClassVar, NamedTuple
        import msgspec

        class Base:
            def __init__(self, info):
                self.inherited = 1

        def helper(batch, scale: int = 1): ...

        @dataclass
        class Batch(Base):
            reqs: list
            seq_lens: int = 0
            cache: dict = field(default_factory=dict)
            must: int = field(kw_only=True)
            hidden: int = field(init=False, default=0)
            count: ClassVar[int] = 0

            def filter_batch(self, keep=None): ...

        @dataclasses.dataclass(frozen=True)
        class Frozen:
            size: int

        class Point(NamedTuple):
            x: int
            y: int = 0

        class Message(msgspec.Struct, kw_only=True):
            text: str
            tag: str = ""

        class Algorithm(Enum):
            NONE = auto()
            EAGLE = auto()

            def is_none(self):
                return self is Algorithm.NONE
    """,
}


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    write(tmp_path, FILES)
    return SourceTree.folder(tmp_path)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")


def piece(name: str, kind: Kind = Kind.METHOD, use: Use = Use.HOOK, **more: object) -> Piece:
    return Piece(str(more.pop("module", SCHEDULER)), name, kind, use, "test", **more)  # type: ignore[arg-type]


def problem(tree: SourceTree, wanted: Piece) -> str | None:
    mismatches = verify(tree, [wanted])
    return mismatches[0].problem if mismatches else None


@pytest.mark.parametrize(
    "wanted",
    [
        piece("Scheduler.run_batch", args=("batch",), keywords=("pp_proxy_tensors",)),
        piece("Scheduler.run_batch", use=Use.CALL, args=("batch",)),
        piece("Scheduler.get_next_batch_to_run", called_in=("event_loop_overlap",)),
        piece("Scheduler.report_decode_stats", args=("can_run_cuda_graph", "running_batch")),
        piece("Scheduler.make", use=Use.CALL, args=("size",), keywords=("flag",)),
        piece("Scheduler.__init__", args=("server_args",), keywords=("port",)),
        piece("Scheduler.running_batch", Kind.ATTRIBUTE, Use.WRITE),
        piece("Scheduler.waiting_queue", Kind.ATTRIBUTE, Use.READ),
        piece("Scheduler.result_queue", Kind.ATTRIBUTE, Use.READ),
        piece("Scheduler.turn", Kind.ATTRIBUTE, Use.READ),
        piece("Scheduler.odd", Kind.ATTRIBUTE, Use.READ),
        piece("Scheduler.label", Kind.ATTRIBUTE, Use.READ),
        piece("Scheduler.inherited", Kind.ATTRIBUTE, Use.READ),
        piece("Scheduler.spec_num_forward_ct", Kind.ATTRIBUTE, Use.READ),
        piece("Scheduler.load", Kind.ATTRIBUTE, Use.READ),
        piece("Scheduler.mode", Kind.ATTRIBUTE, Use.READ | Use.WRITE),
        piece("LIMIT", Kind.CONSTANT, Use.READ),
        piece("Scheduler", Kind.CLASS, Use.READ),
        piece("Batch", Kind.CLASS, Use.CALL, args=("reqs", "seq_lens"), keywords=("must",)),
        piece("Alias.filter_batch", module="sglang.srt.managers.batch", use=Use.CALL, args=("keep",)),
        piece("Point", Kind.CLASS, Use.CALL, args=("x",)),
        piece("Message", Kind.CLASS, Use.CALL, keywords=("text",)),
        piece("Algorithm.NONE", Kind.ENUM_MEMBER, Use.READ),
        piece("Algorithm.is_none", use=Use.CALL),
        piece("helper", Kind.FUNCTION, Use.CALL, args=("batch",)),
        piece("batches", Kind.CONSTANT, Use.READ),
    ],
    ids=lambda wanted: wanted.name,
)
def test_a_piece_that_is_there(tree: SourceTree, wanted: Piece) -> None:
    assert problem(tree, wanted) is None


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (piece("Scheduler.run_batches"), "is gone (similar name there: run_batch)"),
        (piece("Scheduler.xyz"), "is gone"),
        (piece("Other.xyz"), f"is gone, {SCHEDULER} has no class Other"),
        (piece("f", Kind.FUNCTION, module="sglang.srt.nowhere"), "is gone, there is no module sglang.srt.nowhere"),
        (piece("Hint", Kind.CLASS), None),
        (piece("Scheduler.run_batch", args=("worker_batch",)), "lost the parameter 'worker_batch'"),
        (piece("Scheduler.run_batch", keywords=("stream",)), "lost the parameter 'stream'"),
        (
            piece("Scheduler.run_batch", args=("pp_proxy_tensors",)),
            "takes the parameter 'pp_proxy_tensors' in another place",
        ),
        (piece("Scheduler.make", args=("size", "flag")), "takes 'flag' by name only now"),
        (piece("Scheduler.make", use=Use.CALL, args=("size",)), "needs the new parameter 'flag'"),
        (piece("Batch", Kind.CLASS, Use.CALL, args=("reqs",)), "needs the new parameter 'must'"),
        (piece("Batch", Kind.CLASS, Use.CALL, keywords=("reqs", "hidden")), "lost the parameter 'hidden'"),
        (piece("Batch", Kind.CLASS, Use.CALL, keywords=("reqs", "count")), "lost the parameter 'count'"),
        (piece("Message", Kind.CLASS, Use.CALL, args=("text",)), "takes 'text' by name only now"),
        (piece("Scheduler.run_batch", called_in=("event_loop_normal",)), "is no longer called in event_loop_normal"),
        (piece("Scheduler.report_decode_stats", called_in=("run_batch",)), "is no longer called in run_batch"),
        (piece("Scheduler.load"), "is a property now"),
        (piece("Scheduler.waiting_queue"), "is no longer a method"),
        (piece("Scheduler.run_batch", Kind.ATTRIBUTE, Use.READ), "is a method now"),
        (piece("Scheduler.load", Kind.ATTRIBUTE, Use.WRITE), "is a property without a setter"),
        (piece("Frozen.size", Kind.ATTRIBUTE, Use.WRITE), "cannot be set, Frozen is frozen"),
        (piece("Point.x", Kind.ATTRIBUTE, Use.WRITE), "cannot be set, Point is frozen"),
        (piece("Scheduler.waiting", Kind.ATTRIBUTE, Use.READ), "is gone (similar name there: waiting_queue)"),
        (piece("Scheduler.xyz", Kind.ATTRIBUTE, Use.READ), "is gone"),
        (piece("Algorithm.NGRAM", Kind.ENUM_MEMBER), "is gone"),
        (piece("Scheduler", Kind.FUNCTION), "is no longer a function"),
        (piece("helper", Kind.CLASS), "is no longer a class"),
        (piece("helper", Kind.FUNCTION, Use.CALL), "needs the new parameter 'batch'"),
    ],
    ids=lambda value: value.name if isinstance(value, Piece) else "",
)
def test_a_piece_that_is_not(tree: SourceTree, wanted: Piece, expected: str | None) -> None:
    assert problem(tree, wanted) == expected


def test_a_name_that_the_contract_knows_is_no_new_name(tree: SourceTree) -> None:
    wanted = piece("Scheduler.waiting", Kind.ATTRIBUTE, Use.READ)
    known = piece("Scheduler.waiting_queue", Kind.ATTRIBUTE, Use.READ)
    assert [str(mismatch) for mismatch in verify(tree, [wanted, known])] == [f"{SCHEDULER}.Scheduler.waiting is gone"]


def test_a_name_imported_for_type_checkers_alone_is_not_there(tree: SourceTree, tmp_path: Path) -> None:
    write(
        tmp_path,
        {"sglang/typed.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sglang.x import Y\n"},
    )
    assert problem(tree, piece("Y", Kind.CLASS, module="sglang.typed")) == "is gone"


def test_a_file_that_does_not_parse_is_reported(tree: SourceTree, tmp_path: Path) -> None:
    write(tmp_path, {"sglang/broken.py": "def f(:\n"})
    found = problem(tree, piece("f", Kind.FUNCTION, module="sglang.broken"))
    assert found == "cannot be checked, this Python does not parse sglang/broken.py"


def test_star_imports_in_a_circle_end(tree: SourceTree, tmp_path: Path) -> None:
    write(tmp_path, {"sglang/a.py": "from sglang.b import *\n", "sglang/b.py": "from sglang.a import *\n"})
    assert problem(tree, piece("f", Kind.FUNCTION, module="sglang.a")) == "is gone"


@pytest.mark.parametrize(
    ("path", "edit", "wanted", "expected"),
    [
        (
            "sglang/srt/managers/scheduler.py",
            lambda text: text.replace("run_batch(", "execute_batch("),
            piece("Scheduler.run_batch", args=("batch",)),
            "is gone",
        ),
        (
            "sglang/srt/managers/mixin.py",
            lambda text: text.replace(", running_batch=None", ""),
            piece("Scheduler.report_decode_stats", args=("can_run_cuda_graph", "running_batch")),
            "lost the parameter 'running_batch'",
        ),
        (
            "sglang/srt/managers/mixin.py",
            lambda text: text.replace("self.spec_num_forward_ct", "self.spec_forward_ct"),
            piece("Scheduler.spec_num_forward_ct", Kind.ATTRIBUTE, Use.READ),
            "is gone (similar name there: spec_forward_ct)",
        ),
        (
            "sglang/srt/managers/scheduler.py",
            lambda text: text.replace("while self.get_next_batch_to_run():", "while self.next():"),
            piece("Scheduler.get_next_batch_to_run", called_in=("event_loop_overlap",)),
            "is no longer called in event_loop_overlap",
        ),
    ],
    ids=["renamed method", "removed parameter", "renamed attribute", "dead hook"],
)
def test_what_a_new_release_may_do(
    tmp_path: Path, path: str, edit: Callable[[str], str], wanted: Piece, expected: str
) -> None:
    write(tmp_path, FILES)
    assert problem(SourceTree.folder(tmp_path), wanted) is None
    changed = edit((tmp_path / path).read_text(encoding="utf-8"))
    (tmp_path / path).write_text(changed, encoding="utf-8")
    assert problem(SourceTree.folder(tmp_path), wanted) == expected


def test_a_wheel_is_read_like_a_folder(tmp_path: Path) -> None:
    wheel = tmp_path / "sglang-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, textwrap.dedent(text))
    wanted = [piece("Scheduler.run_batch", args=("batch",)), piece("Scheduler.inherited", Kind.ATTRIBUTE, Use.READ)]
    with zipfile.ZipFile(wheel) as archive:
        assert verify(SourceTree.wheel(archive), wanted) == ()
        assert problem(SourceTree.wheel(archive), piece("Scheduler.gone")) == "is gone"
