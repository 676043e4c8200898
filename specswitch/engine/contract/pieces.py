"""What the contract's rows are made of: pieces of SGLang, and the release lines that need them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import Literal

from packaging.version import Version

EnginePath = Literal["v1", "v2"]
"""The two families of SGLang's speculative workers, as in :class:`specswitch.engine.base.EngineFacts`."""


class Kind(str, Enum):
    """What a piece is in SGLang's source."""

    FUNCTION = "function"
    """A function of a module."""
    METHOD = "method"
    """A method of a class, its own or inherited inside SGLang."""
    CLASS = "class"
    """A class; with parameters, its constructor."""
    ATTRIBUTE = "attribute"
    """Assigned on ``self``, on the class, declared as a field, or a property."""
    SERVER_ARGUMENT = "server argument"
    """A field of ``ServerArgs``: its own, or of one of the classes that it is assembled from since 0.5.20."""
    ENUM_MEMBER = "enum member"
    CONSTANT = "module constant"


class Use(Flag):
    """What specswitch does with a piece."""

    HOOK = auto()
    """Replaces or wraps it; SGLang calls it."""
    CALL = auto()
    READ = auto()
    WRITE = auto()

    @property
    def words(self) -> str:
        """``"read, write"``."""
        return ", ".join((use.name or "").lower() for use in Use if use in self)


@dataclass(frozen=True, slots=True)
class Piece:
    """One thing of SGLang that specswitch relies on.

    ``since`` and ``until`` (both inclusive, SGLang releases) bound the releases inside a line that
    need the piece, where the engine has an alternative for the others.
    """

    module: str
    """Where it is imported from, for example ``sglang.srt.managers.scheduler``."""
    name: str
    """``Class.member``, ``Class`` or ``function``."""
    kind: Kind
    use: Use
    why: str
    """What for, as the end of a sentence: "hooked to ..."."""
    args: tuple[str, ...] = ()
    """The leading positional parameters relied on, in order, without ``self``."""
    keywords: tuple[str, ...] = ()
    """Parameters relied on by name, wherever they stand."""
    called_in: tuple[str, ...] = ()
    """Methods of the same class that must still refer to it: a hook that nothing calls is dead."""
    since: str | None = None
    until: str | None = None

    @property
    def path(self) -> str:
        """The dotted path, as SGLang's own hook registry takes it."""
        return f"{self.module}.{self.name}"

    def applies_to(self, release: Version) -> bool:
        """Whether ``release`` needs this piece."""
        return (self.since is None or release >= Version(self.since)) and (
            self.until is None or release <= Version(self.until)
        )


@dataclass(frozen=True, slots=True)
class Owner:
    """A class of SGLang, to write its pieces without repeating where it lives."""

    module: str
    name: str
    since: str | None = None
    until: str | None = None

    def method(
        self,
        name: str,
        use: Use,
        why: str,
        *,
        args: Iterable[str] = (),
        keywords: Iterable[str] = (),
        called_in: Iterable[str] = (),
        since: str | None = None,
        until: str | None = None,
    ) -> Piece:
        """A method of this class."""
        return Piece(
            self.module,
            f"{self.name}.{name}",
            Kind.METHOD,
            use,
            why,
            tuple(args),
            tuple(keywords),
            tuple(called_in),
            since or self.since,
            until or self.until,
        )

    def attributes(
        self, use: Use, why: str, *names: str, since: str | None = None, until: str | None = None
    ) -> tuple[Piece, ...]:
        """Attributes of this class that serve one end."""
        return tuple(
            Piece(
                self.module,
                f"{self.name}.{name}",
                Kind.ATTRIBUTE,
                use,
                why,
                since=since or self.since,
                until=until or self.until,
            )
            for name in names
        )

    def arguments(
        self, why: str, *names: str, use: Use = Use.READ, since: str | None = None, until: str | None = None
    ) -> tuple[Piece, ...]:
        """Fields of ``ServerArgs``."""
        return tuple(
            Piece(self.module, f"{self.name}.{name}", Kind.SERVER_ARGUMENT, use, why, since=since, until=until)
            for name in names
        )

    def itself(self, why: str, *, use: Use = Use.READ, args: Iterable[str] = (), keywords: Iterable[str] = ()) -> Piece:
        """The class; with parameters, its constructor."""
        return Piece(
            self.module,
            self.name,
            Kind.CLASS,
            use,
            why,
            tuple(args),
            tuple(keywords),
            since=self.since,
            until=self.until,
        )

    def members(self, why: str, *names: str) -> tuple[Piece, ...]:
        """Members of this enum."""
        return tuple(
            Piece(
                self.module,
                f"{self.name}.{name}",
                Kind.ENUM_MEMBER,
                Use.READ,
                why,
                since=self.since,
                until=self.until,
            )
            for name in names
        )


def function(
    module: str,
    name: str,
    use: Use,
    why: str,
    *,
    args: Iterable[str] = (),
    keywords: Iterable[str] = (),
    since: str | None = None,
    until: str | None = None,
) -> Piece:
    """A function of a module."""
    return Piece(module, name, Kind.FUNCTION, use, why, tuple(args), tuple(keywords), since=since, until=until)


@dataclass(frozen=True, slots=True)
class Need:
    """What one module of specswitch needs of SGLang."""

    module: str
    """The module of specswitch, for example ``specswitch.engine.v1``."""
    pieces: tuple[Piece, ...]
    paths: frozenset[EnginePath] = frozenset({"v1", "v2"})
    """The engine paths that cannot run without these pieces."""


@dataclass(frozen=True, slots=True)
class ReleaseLine:
    """SGLang releases that one set of engines serves."""

    name: str
    first: str
    """The first release of the line."""
    before: str | None
    """The first release that is no longer of the line; None for the newest line."""
    paths: Mapping[EnginePath, str]
    """Which specswitch module serves ``v1`` and ``v2``."""
    tested: tuple[str, ...]
    """Releases on which the real-engine tests run; the others are checked by contract alone."""
    needs: tuple[Need, ...]

    def covers(self, release: Version) -> bool:
        """Whether ``release`` belongs to this line."""
        return release >= Version(self.first) and (self.before is None or release < Version(self.before))

    def pieces(self, release: Version) -> tuple[Piece, ...]:
        """The rows that ``release`` needs, each once; two rows may state the same piece for different uses."""
        rows = (piece for need in self.needs for piece in need.pieces if piece.applies_to(release))
        return tuple(dict.fromkeys(rows))

    def users(self, piece: Piece) -> tuple[str, ...]:
        """The modules of specswitch that rely on what ``piece`` names."""
        return tuple(need.module for need in self.needs if any(other.path == piece.path for other in need.pieces))


def comparable(release: str) -> Version:
    """``release`` as a version whose pre-releases count as the release they lead to.

    Raises:
        packaging.version.InvalidVersion: ``release`` is not a version.
    """
    version = Version(release)
    return Version(version.base_version) if version.is_prerelease else Version(version.public)
