"""The setting common to all commands: the cluster's metadata URI.

Its sources, in order of precedence: the ``--metadata-uri`` option, the variable ``BKHEAL_METADATA_URI``, the key
``metadata_uri`` of the configuration file. This file is the one given by ``--config``, else by ``BKHEAL_CONFIG``, else
``~/.config/bkheal/config.toml`` if it exists. A file given explicitly must exist and be valid, even if its value is not
needed; the file at the default path is read only if no other source has a URI.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from bookie.model.errors import PermanentError

URI_VARIABLE: Final = "BKHEAL_METADATA_URI"
CONFIG_VARIABLE: Final = "BKHEAL_CONFIG"
URI_KEY: Final = "metadata_uri"

_DEPTH_MAX: Final = 16
"""Maximum depth of nested tables and lists; no command's settings are nested more than three deep."""
_TOO_DEEP_MESSAGE: Final = f"it is nested more than {_DEPTH_MAX - 1} deep"
_INT_MIN: Final = -(1 << 63)
_INT_MAX: Final = (1 << 63) - 1

_EXAMPLE: Final = "zk://host1:2181;host2:2181/ledgers"


class ConfigurationError(PermanentError):
    """Missing or invalid settings. ``problems`` contains every problem found, not only the first."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("configuration: " + "; ".join(problems))
        self.problems = tuple(problems)


def resolve_metadata_uri(flag: str | None, env: Mapping[str, str], flag_file: Path | None) -> str:
    """Return the cluster's metadata URI, not yet parsed.

    Args:
        flag: value of ``--metadata-uri``.
        env: environment variables; an empty one counts as unset.
        flag_file: value of ``--config``.

    Raises:
        ConfigurationError: no source has a URI, or a source is invalid; lists every problem.
    """
    problems: list[str] = []
    if flag is not None and not flag.strip():
        problems.append(f"--metadata-uri is empty; give one such as '{_EXAMPLE}'")
    named = flag_file or (Path(env[CONFIG_VARIABLE]) if env.get(CONFIG_VARIABLE) else None)
    configured = _read(named, problems) if named is not None else None
    uri = (flag or "").strip() or env.get(URI_VARIABLE, "").strip() or configured
    default = _default_file(env)
    if uri is None and named is None and default is not None and _is_file(default):
        uri = _read(default, problems)
    if uri is None and not problems:
        problems.append(
            f"no cluster is named; give --metadata-uri '{_EXAMPLE}', set {URI_VARIABLE}, "
            f'or write {URI_KEY} = "{_EXAMPLE}" into {named or default or "a file for --config"}'
        )
    if problems or uri is None:
        raise ConfigurationError(problems)
    return uri


def config_file(flag_file: Path | None, env: Mapping[str, str]) -> Path | None:
    """Return the configuration file to read: the given one, even if missing, or the default one if it exists."""
    if flag_file is not None or env.get(CONFIG_VARIABLE):
        return flag_file or Path(env[CONFIG_VARIABLE])
    default = _default_file(env)
    return default if default is not None and _is_file(default) else None


def read_config(path: Path) -> Mapping[str, Any]:
    """Return the content of a configuration file.

    Raises:
        ConfigurationError: the file cannot be read, or ``parse_config`` rejects it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError([f"cannot read {path}: {error.strerror or error}"]) from error
    except ValueError as error:  # not UTF-8, or an impossible path
        raise ConfigurationError([f"cannot read {path}: {error}"]) from error
    return parse_config(text, path)


def parse_config(text: str, path: Path) -> Mapping[str, Any]:
    """Return the content of a configuration file from its text.

    Extreme content is rejected, so that callers can safely traverse, convert and show every value.

    Raises:
        ConfigurationError: the text is not TOML, is nested too deeply, or has an integer of more than 64 bits.
    """
    try:
        content = tomllib.loads(text)
    except RecursionError:
        raise ConfigurationError([f"cannot read {path}: {_TOO_DEEP_MESSAGE}"]) from None
    except ValueError as error:  # not TOML, or an integer with too many digits
        raise ConfigurationError([f"cannot read {path}: {error}"]) from error
    if (problem := _extreme_content_problem(content)) is not None:
        raise ConfigurationError([f"cannot read {path}: {problem}"])
    return content


def _extreme_content_problem(content: Mapping[str, Any]) -> str | None:
    """Return why the content is too extreme, or None: integers beyond TOML's 64 bits, or too deep nesting."""
    level: list[Any] = [content]
    for _ in range(_DEPTH_MAX):
        if any(isinstance(value, int) and not _INT_MIN <= value <= _INT_MAX for value in level):
            return "it has an integer of more than 64 bits"
        level = [inner for value in level for inner in _nested_values(value)]
        if not level:
            return None
    return _TOO_DEEP_MESSAGE


def _nested_values(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()


def _default_file(env: Mapping[str, str]) -> Path | None:
    if env.get("XDG_CONFIG_HOME"):
        return Path(env["XDG_CONFIG_HOME"]) / "bkheal" / "config.toml"
    return Path(env["HOME"]) / ".config" / "bkheal" / "config.toml" if env.get("HOME") else None


def _is_file(path: Path) -> bool:
    """Whether the default file exists. If this user may not search the home directory, it counts as missing."""
    try:
        return path.is_file()
    except OSError:
        return False


def _read(path: Path, problems: list[str]) -> str | None:
    """Return the URI in the file, if any; add all problems of the file to ``problems``."""
    try:
        content = read_config(path)
    except ConfigurationError as error:
        problems += error.problems
        return None
    return uri_from_content(content, path, problems)


def uri_from_content(content: Mapping[str, Any], path: Path, problems: list[str]) -> str | None:
    """Return the URI in the content of a file, if any; add problems outside its tables to ``problems``."""
    unknown = sorted(name for name, value in content.items() if name != URI_KEY and not isinstance(value, Mapping))
    if unknown:
        problems.append(
            f"{path}: unknown {', '.join(unknown)}; outside the tables only {URI_KEY} is known, and the options of a "
            "command belong below a line such as [auditor]"
        )
    uri = content.get(URI_KEY)
    if uri is None:
        return None
    if (problem := uri_problem(uri)) is not None:
        problems.append(f"{path}: {problem}")
        return None
    return str(uri).strip()


def uri_problem(uri: object) -> str | None:
    """Return why ``uri``, not yet parsed, is invalid in a configuration file, or None if it is valid."""
    if isinstance(uri, str) and uri.strip():
        return None
    return f'{URI_KEY} must be a text such as "{_EXAMPLE}", not {uri!r}'
