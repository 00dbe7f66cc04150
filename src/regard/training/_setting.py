"""Settings as frozen dataclasses whose fields have a help text.

The options of the command line are derived from them, and presets are changed by the same names; fields of a nested
dataclass (`crops`, `model`) are addressed by their names alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar, get_type_hints

from regard._problem import Problem

T = TypeVar("T")
_KEY = "regard"  # of the `Description`, in the metadata of a field


@dataclass(frozen=True)
class Description:
    """Metadata of a field; see `setting`."""

    help: str
    flags: tuple[str, ...] = ()
    at_least: float | None = None
    parse: Callable[[str], Any] | None = None
    suggest: tuple[str, ...] = ()


def setting(
    help: str,
    default: Any = MISSING,
    *,
    factory: Callable[[], Any] | Any = MISSING,
    flags: tuple[str, ...] = (),
    at_least: float | None = None,
    parse: Callable[[str], Any] | None = None,
    suggest: tuple[str, ...] = (),
) -> Any:
    """A field of a dataclass of settings.

    `help`: what it does and its unit; the default is added where it is shown.
    `default`: the default value.
    `factory`: in place of a default, a function that returns it.
    `flags`: of its option, such as "--grouped/--single"; default `--its-name`.
    `at_least`: the smallest value; default None, any.
    `parse`: from the text of an option to the value; default None, for numbers, text and tuples of these.
    `suggest`: values that the shell completes the option with; default none, or the choices of a `Literal`.

    >>> @dataclass(frozen=True)
    ... class Walk:
    ...     steps: int = setting("How far to go, in steps.", 10, at_least=1)
    >>> Walk().steps, settings_in(Walk)["steps"].help
    (10, 'How far to go, in steps.')
    """
    metadata = {_KEY: Description(help, flags, at_least, parse, suggest)}
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class SettingEntry:
    """One setting of a dataclass: its name, the `path` of fields that leads to it, its type and its description."""

    name: str
    path: tuple[str, ...]
    type: Any
    help: str
    flags: tuple[str, ...]
    at_least: float | None
    parse: Callable[[str], Any] | None
    suggest: tuple[str, ...]

    def of(self, settings: Any) -> Any:
        """Its value in a dataclass of settings."""
        for name in self.path:
            settings = getattr(settings, name)
        return settings


def settings_in(kind: type) -> dict[str, SettingEntry]:
    """The settings of a dataclass and of nested ones, by name; a TypeError if two have the same name.

    >>> from regard.swav import Settings
    >>> settings_in(Settings)["steps"].path, settings_in(Settings)["local"].path
    (('steps',), ('crops', 'local'))
    """
    result: dict[str, SettingEntry] = {}
    types = _types(kind)
    for each in fields(kind):
        if is_dataclass(types[each.name]):
            inner = settings_in(types[each.name])
            entries = [replace(entry, path=(each.name, *entry.path)) for entry in inner.values()]
        elif _KEY in each.metadata:
            about: Description = each.metadata[_KEY]
            entries = [SettingEntry(each.name, (each.name,), types[each.name], **vars(about))]
        else:
            raise TypeError(f"{kind.__name__}.{each.name} has no help. Make it with `setting(help, default)`.")
        for entry in entries:
            if entry.name in result:
                raise TypeError(f"{kind.__name__} has two settings {entry.name!r}. Rename one of them.")
            result[entry.name] = entry
    return result


def _types(kind: type) -> dict[str, Any]:
    """The type of each field of a dataclass."""
    hints = get_type_hints(kind)
    return {one.name: hints[one.name] for one in fields(kind)}


def changed(settings: T, changes: Mapping[str, Any]) -> T:
    """The settings with changed values, by name, at any depth; a Problem if there is no such setting.

    >>> from regard.swav import Settings
    >>> changed(Settings(), {"steps": 5, "local": 6}).crops.local
    6
    """
    known = settings_in(type(settings))
    if unknown := changes.keys() - known.keys():
        raise Problem(f"there is no setting {min(unknown)!r}. Settings are {', '.join(sorted(known))}.")
    nested: dict[str, Any] = {}
    for name, value in changes.items():
        level = nested
        for part in known[name].path[:-1]:
            level = level.setdefault(part, {})
        level[known[name].path[-1]] = value
    result: T = _replaced(settings, nested)
    return result


def _replaced(settings: Any, nested: dict[str, Any]) -> Any:
    """A copy with nested changes; every dataclass is made once, so that its checks see all changes together."""
    inner = {name: getattr(settings, name) for name in nested}
    return replace(
        settings,
        **{name: _replaced(inner[name], v) if is_dataclass(inner[name]) else v for name, v in nested.items()},
    )
