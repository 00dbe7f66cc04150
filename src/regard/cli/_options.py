"""Options of a command, derived from a dataclass of settings: names, types, bounds, help and defaults."""

from __future__ import annotations

import enum
import functools
import inspect
import json
import os
import sys
import types
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer

from regard._problem import Problem
from regard._ranks import is_first
from regard.cli._complete import among
from regard.training._setting import SettingEntry, changed, settings_in
from regard.training._settings import Running

T = TypeVar("T")


@dataclass(frozen=True)
class Derived:
    """Settings that a command takes as options, each with its default in its help.

    kind: the dataclass of settings.
    panel: the title above the options on the help page.
    presets: settings by the name of a preset, whose values the help shows as defaults; default: those of `kind`.
    inner: titles for the settings of a nested dataclass, by the name of its field.
    without: settings that are no options.
    only: the settings that are options; if empty, all of them.
    default: what the help says is the default of all of them; if empty, that of each.
    """

    kind: type
    panel: str
    presets: Mapping[str, Any] = field(default_factory=dict)
    inner: Mapping[str, str] = field(default_factory=dict)
    without: frozenset[str] = frozenset()
    only: frozenset[str] = frozenset()
    default: str = ""

    def settings(self) -> list[SettingEntry]:
        """Those that become options."""
        known = settings_in(self.kind)
        if unknown := (self.without | self.only) - known.keys():
            raise TypeError(f"{self.kind.__name__} has no setting {min(unknown)!r}.")
        names = (self.only or known.keys()) - self.without
        return [setting for name, setting in known.items() if name in names]

    def option(self, setting: SettingEntry) -> inspect.Parameter:
        """The option of a setting. Its default is None, which leaves the value of the preset."""
        info = typer.Option(
            *setting.flags,
            min=setting.at_least,
            parser=_parser(setting),
            autocompletion=among(setting.suggest) if setting.suggest else None,
            metavar="<json>" if setting.parse and setting.type not in (Any, int | str) else None,
            help=f"{setting.help} {self._default(setting)}".strip(),
            rich_help_panel=self.inner.get(setting.path[0], self.panel) if setting.path[1:] else self.panel,
        )
        kind = Annotated[_type(setting) | None, info]  # type: ignore[valid-type]
        return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)

    def _default(self, setting: SettingEntry) -> str:
        """The commonest value among the presets, and the presets that have another."""
        if self.default:
            return f"(default: {self.default})"
        values = {name: _shown(setting, setting.of(preset)) for name, preset in self.presets.items()}
        values = values or {"": _shown(setting, setting.of(self.kind()))}
        usual, _ = Counter(values.values()).most_common(1)[0]
        others = [f"{name} {value}" for name, value in values.items() if value != usual]
        return f"(default: {usual}{'; ' if others else ''}{', '.join(others)})"


#: Options of commands whose work several processes share without training.
SHARED = Derived(Running, "How it runs", only=frozenset({"device", "devices", "num_nodes", "strategy", "timeout"}))


def derived(**groups: Derived) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Replace parameters of a command by options that are derived from settings.

    Each keyword names a parameter of the command, which receives a dictionary from the names of settings to the values
    on the command line. Two options of one name are a TypeError.

    >>> from regard.training import Running
    >>> @derived(running=Derived(Running, "How it runs"))
    ... def command(out: str, running: dict[str, Any]) -> None:
    ...     print(out, running)
    >>> command(out="out/mine", devices=2, precision=None)
    out/mine {'devices': 2}
    """

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        signature = inspect.signature(function, eval_str=True)
        parameters = {name: one for name, one in signature.parameters.items() if name not in groups}
        targets: dict[str, str] = {}  # from the name of a setting to the parameter that receives it
        for target, group in groups.items():
            for setting in group.settings():
                if setting.name in parameters:
                    raise TypeError(f"{function.__name__} has two options {setting.name!r}. Leave one out.")
                parameters[setting.name] = group.option(setting)
                targets[setting.name] = target

        @functools.wraps(function)
        def command(**values: Any) -> T:
            changes: dict[str, dict[str, Any]] = {target: {} for target in groups}
            for name, target in targets.items():
                if (value := values.pop(name, None)) is not None:
                    changes[target][name] = value.value if isinstance(value, enum.Enum) else value
            return function(**values, **changes)

        keywords = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters.values()]
        command.__signature__ = signature.replace(parameters=keywords)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in keywords}
        return command

    return decorate


def applied(settings: T, changes: Mapping[str, Any]) -> T:
    """Settings with the values from the command line; a wrong value is a `Problem` of one line.

    >>> from regard.training import Running
    >>> applied(Running(), {"num_nodes": 0})
    Traceback (most recent call last):
    regard._problem.Problem: num_nodes: got 0, expected a whole number >= 1. Choose a larger one.
    """
    try:
        return changed(settings, changes)
    except (ValueError, TypeError) as error:
        raise Problem(" ".join(str(error).split())) from error


def only_first_speaks() -> None:
    """Print nothing in the further processes that Lightning started with the same command."""
    if not is_first():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _type(setting: SettingEntry) -> Any:
    """The type that typer converts the text of an option to."""
    if setting.parse is not None:
        return str
    kind = setting.type
    if get_origin(kind) in (Union, types.UnionType):
        (kind,) = (part for part in get_args(kind) if part is not types.NoneType)
    if get_origin(kind) is Literal:
        return enum.Enum(setting.name, {value: value for value in get_args(kind)})
    return kind


def _parser(setting: SettingEntry) -> Callable[[str], Any] | None:
    """`setting.parse`, with errors that name the option; typer's name only the value."""
    parse = setting.parse
    if parse is None:
        return None

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise _Refused(f"--{setting.name.replace('_', '-')}: {error}") from error

    return parsed


class _Refused(Exception):
    """A value that cannot be parsed; not a ValueError, whose message typer drops."""

    def format_message(self) -> str:
        """The message, under the name that click's usage errors have."""
        return str(self)


def _shown(setting: SettingEntry, value: Any) -> str:
    """A default as it is written on the command line."""
    if value is None or value in ((), {}):
        return "none"
    if isinstance(value, bool):
        on, _, off = "".join(setting.flags or ("--yes/--no",)).replace("--", "").partition("/")
        return on if value else off
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, tuple):
        return " ".join(_shown(setting, part) for part in value)
    if isinstance(value, dict):
        return json.dumps(value, separators=(",", ":"))
    return str(value)
