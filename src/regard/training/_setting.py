"""Settings that describe themselves: frozen dataclasses whose fields carry their help.

The command line makes its options of them, and presets are changed by the same names; those of a dataclass inside
another (`crops`, `model`) are reached by their own names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar, get_type_hints

from regard._problem import Problem

T = TypeVar("T")
_KEY = "regard"  # of what is said here about a field, in the field's metadata


@dataclass(frozen=True)
class Description:
    """What a field does, with its unit; `flags` of its option where they are not `--its-name`; its smallest value."""

    help: str
    flags: tuple[str, ...] = ()
    at_least: float | None = None
    parse: Callable[[str], Any] | None = None


def setting(
    help: str,
    default: Any = MISSING,
    *,
    factory: Callable[[], Any] | Any = MISSING,
    flags: tuple[str, ...] = (),
    at_least: float | None = None,
    parse: Callable[[str], Any] | None = None,
) -> Any:
    """A field of a dataclass of settings.

    help: what it does and its unit; the default is added where it is shown.
    default: its value unless another is given.
    factory: in place of a default, a function that makes it.
    flags: those of its option, if they are not `--its-name`, such as "--grouped/--single".
    at_least: the smallest number that is allowed.
    parse: from the text of an option to the value, for what is no plain number, text or tuple of these.

    >>> @dataclass(frozen=True)
    ... class Walk:
    ...     steps: int = setting("How far to go, in steps.", 10, at_least=1)
    >>> Walk().steps, settings_in(Walk)["steps"].help
    (10, 'How far to go, in steps.')
    """
    metadata = {_KEY: Description(help, flags, at_least, parse)}
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class SettingEntry:
    """One setting of a dataclass: its name, the `path` of fields that leads to it, its type, what is said about it."""

    name: str
    path: tuple[str, ...]
    type: Any
    help: str
    flags: tuple[str, ...]
    at_least: float | None
    parse: Callable[[str], Any] | None

    def of(self, settings: Any) -> Any:
        """Its value."""
        for name in self.path:
            settings = getattr(settings, name)
        return settings


def settings_in(kind: type) -> dict[str, SettingEntry]:
    """The settings of a dataclass and of those inside it, by name; a TypeError if two have one name.

    >>> from regard.swav import Settings
    >>> settings_in(Settings)["steps"].path, settings_in(Settings)["local"].path
    (('steps',), ('crops', 'local'))
    """
    result: dict[str, SettingEntry] = {}
    types = _types(kind)
    for one in fields(kind):
        if is_dataclass(types[one.name]):
            inner = settings_in(types[one.name])
            entries = [replace(entry, path=(one.name, *entry.path)) for entry in inner.values()]
        elif _KEY in one.metadata:
            said: Description = one.metadata[_KEY]
            entries = [
                SettingEntry(one.name, (one.name,), types[one.name], said.help, said.flags, said.at_least, said.parse)
            ]
        else:
            raise TypeError(f"{kind.__name__}.{one.name} has no help. Make it with `setting(help, default)`.")
        for entry in entries:
            if entry.name in result:
                raise TypeError(f"{kind.__name__} has two settings {entry.name!r}. Rename one of them.")
            result[entry.name] = entry
    return result


def _types(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {one.name: hints[one.name] for one in fields(kind)}


def changed(settings: T, changes: Mapping[str, Any]) -> T:
    """The settings with other values, by name, at any depth; a Problem if there is no such setting.

    >>> from regard.swav import Settings
    >>> changed(Settings(), {"steps": 5, "local": 6}).crops.local
    6
    """
    known = settings_in(type(settings))
    if unknown := changes.keys() - known.keys():
        raise Problem(f"there is no setting {min(unknown)!r}. Settings are {', '.join(sorted(known))}.")
    nested: dict[str, Any] = {}
    for name, value in changes.items():
        place = nested
        for part in known[name].path[:-1]:
            place = place.setdefault(part, {})
        place[known[name].path[-1]] = value
    result: T = _replaced(settings, nested)
    return result


def _replaced(settings: Any, nested: dict[str, Any]) -> Any:
    """Every dataclass is made once, with all its changes, so that it is checked as a whole."""
    inner = {name: getattr(settings, name) for name in nested}
    return replace(
        settings,
        **{name: _replaced(inner[name], v) if is_dataclass(inner[name]) else v for name, v in nested.items()},
    )
