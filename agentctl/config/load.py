"""Find, read and check the configuration (docs/contract.md "Configuration").

`SAMPLE_CONFIG` and `DEMO_CONFIG` are the configuration files of `agentctl init --full` and
`agentctl serve --demo`. `authorization.provider` fills in the settings for the tokens of a known
identity provider; a setting of the file or of the environment stays. docs/identity-providers.md has
the form of the tokens of each provider, and what to configure there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from agentctl.config import tables
from agentctl.config.checks import check_settings
from agentctl.config.databases import check_database_url
from agentctl.config.given_tables import GivenTables
from agentctl.config.places import Place
from agentctl.config.settings import Authorization, Database, Settings
from agentctl.config.validation import validate_tables, validate_value
from agentctl.errors import InvalidConfiguration, build_empty_value_error


class _Preset(NamedTuple):
    """The settings for the tokens of an identity provider."""

    issuer: str
    """The form of its issuer, for a hint."""

    settings: Mapping[str, Any]
    """The settings of `[authorization]` that differ from `_COMMON`."""


_COMMON: Mapping[str, Any] = {
    "oidc_discovery": True,
    "verify_audience": True,
    "require_exp": True,
    "require_sub": True,
}

_GOOGLE = "https://accounts.google.com"

PRESETS: Mapping[str, _Preset] = {
    "auth0": _Preset("https://TENANT.auth0.com/", {"scopes_claim": ("scope", "permissions")}),
    "cognito": _Preset(
        "https://cognito-idp.REGION.amazonaws.com/POOL",
        {
            # Access tokens have no `aud`.
            "verify_audience": False,
            "scopes_claim": ("scope",),
            "scope_prefix": "agentctl/",
            "roles_claim": ("cognito:groups",),
        },
    ),
    "entra": _Preset(
        "https://login.microsoftonline.com/TENANT-ID/v2.0",
        {"scopes_claim": ("scp",), "roles_claim": ("roles", "groups")},
    ),
    "google": _Preset(_GOOGLE, {"issuer": _GOOGLE, "scopes_claim": (), "roles_claim": ("hd",)}),
    "keycloak": _Preset(
        "https://HOST/realms/REALM",
        {"scopes_claim": ("scope",), "roles_claim": ("realm_access.roles",)},
    ),
    "okta": _Preset(
        "https://ORG.okta.com/oauth2/default",
        {"scopes_claim": ("scp",), "roles_claim": ("groups",)},
    ),
}
"""The providers by the values of `authorization.provider`."""


def fill_in_provider(table: Authorization, places: dict[str, Place]) -> Authorization:
    """Return the table with the settings of its provider in the place of defaults.

    Args:
        places: the places of all keys. The places of settings that are filled in get the provider.

    Raises:
        InvalidConfiguration: the provider needs an issuer, and there is none.
    """
    preset = PRESETS.get(table.provider)
    if preset is None:
        return table

    preset_values = {**_COMMON, **preset.settings}
    if table.jwks_url or table.jwks_file:
        # The keys come from there.
        del preset_values["oidc_discovery"]

    # A setting of the file or of the environment stays.
    values: dict[str, Any] = {}
    for name, value in preset_values.items():
        if not places[f"authorization.{name}"].given:
            values[name] = value
    if not table.issuer and "issuer" not in values:
        places["authorization.provider"].refuse(
            "needs the issuer", hint=f'set issuer = "{preset.issuer}" in [authorization]'
        )

    for name in values:
        key = f"authorization.{name}"
        places[key] = places[key]._replace(provider=table.provider)
    return replace(table, **values)


ADDING_VARIABLES = {"JWT_VERIFICATION_KEY": "verification_keys", "JWT_JWKS_FILE": "jwks_file"}
"""Variables that add an element to a key of `[authorization]`."""

FILE_NAME = "agentctl.toml"

DEFAULT_DATABASE = "main"
"""The id of the SQLite database next to the file, if the file names no database."""


def find_config_file(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Path:
    """Return the absolute path of the configuration file.

    It is `path`, else the file in AGENTCTL_CONFIG, else `agentctl.toml` in the current folder, else
    in the user's configuration directory. The first two need not exist.

    Raises:
        InvalidConfiguration: no file is given, and neither of the two others exists.
        UsageError: AGENTCTL_CONFIG is empty.
    """
    chosen_path: Path | str | None = path
    if chosen_path is None:
        environ = os.environ if environ is None else environ
        chosen_path = environ.get("AGENTCTL_CONFIG")
        if chosen_path is not None and not chosen_path.strip():
            raise build_empty_value_error("AGENTCTL_CONFIG")
    if chosen_path is not None:
        return Path(os.path.normpath(Path(chosen_path).absolute()))

    local_file = Path.cwd() / FILE_NAME
    if _is_file(local_file):
        return local_file

    # Imported here: a command that is given a file needs no folder of the user.
    from platformdirs import user_config_path

    user_file = user_config_path("agentctl") / FILE_NAME
    if _is_file(user_file):
        return user_file
    raise InvalidConfiguration(
        f"No configuration: neither {local_file} nor {user_file} exists",
        hint="create one with `agentctl init`, or set --config or AGENTCTL_CONFIG",
    )


def load_settings(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Find, read and check the configuration. It reads no other file, such as a key file.

    Args:
        path: the configuration file; None for the result of `find_config_file`.
        environ: the environment variables; None for the variables of this process.

    Raises:
        InvalidConfiguration: the first mistake, with file and key.
    """
    environ = os.environ if environ is None else environ
    file = find_config_file(path, environ)
    text = _read_file(file)

    given_tables = GivenTables(file, text, _parse_toml(text, file))
    given_tables.remove_former_keys()
    given_tables.add_variables(environ)
    given_tables.check_values()

    settings = _build_settings(given_tables, environ, file)
    check_settings(settings, given_tables.places)
    return settings


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _read_file(file: Path) -> str:
    """Return the text of a file; InvalidConfiguration if it cannot be read."""
    place = Place(str(file))
    try:
        return file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        place.refuse("the file does not exist", hint="create one with `agentctl init`")
    except UnicodeDecodeError:
        place.refuse("must be UTF-8 text")
    except IsADirectoryError:
        place.refuse("must be a file, not a directory")
    except OSError as error:
        place.refuse(f"cannot be read: {os.strerror(error.errno or 0).lower()}")


def _parse_toml(text: str, file: Path) -> dict[str, Any]:
    """Return the tables of a text; InvalidConfiguration if it is no TOML."""
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise _build_toml_error(text, file, error) from None


def _build_toml_error(text: str, file: Path, error: Exception) -> InvalidConfiguration:
    """Build the error of a text that is no TOML, with the place of the mistake."""
    import tomllib

    # A message of tomllib ends with " (at line 3, column 1)" or " (at end of document)".
    words, _, position = str(error).partition(" (at ")
    line_and_column = re.match(r"line (\d+), column (\d+)", position)
    place = ""
    if line_and_column:
        place = f" at line {line_and_column[1]}, column {line_and_column[2]}"
    elif position:
        place = f" at its end, line {len(text.splitlines())}"

    cause = words if isinstance(error, tomllib.TOMLDecodeError) else None
    hint = "write text in quotes, numbers, true and false without: https://toml.io"

    repeated_table = re.fullmatch(r"Cannot declare \((['\w, -]+)\) twice", words)
    if repeated_table and line_and_column:
        # As after an example was appended to a file of `agentctl init`.
        name = ".".join(re.findall(r"[\w-]+", repeated_table[1]))
        first_line = _find_table_line(text, name)
        if name and first_line is not None and first_line < int(line_and_column[1]):
            cause = f"[{name}] is also at line {first_line}"
            hint = "add the keys to the first one"

    return InvalidConfiguration(f"{file}: is not valid TOML{place}", cause=cause, hint=hint)


def _find_table_line(text: str, name: str) -> int | None:
    """Return the number, from 1, of the first line that begins a table; None without one."""
    header = re.search(rf"^ *\[{re.escape(name)}\]", text, re.MULTILINE)
    if header is None:
        return None
    return text.count("\n", 0, header.start()) + 1


def _build_settings(given_tables: GivenTables, environ: Mapping[str, str], file: Path) -> Settings:
    """Build the settings of the given tables, with defaults that depend on other values."""
    base = file.parent
    places = given_tables.places
    values = validate_tables(given_tables, base)

    sections = {name: values[name] for name in tables.list_sections()}
    for name, section in sections.items():
        given_tables.add_places(section, (name,))
    # `Settings` has no attributes for the tables of extensions.
    added = {name: sections.pop(name) for name in [*sections] if name not in tables.SECTIONS}

    entries = {name: values[name] for name in tables.ENTRY_TABLES}
    for name in entries:
        _add_entries(entries[name], name, given_tables)

    # Paths of the file are absolute already; the defaults of these two keys are not.
    sections["signing"] = _join_base(sections["signing"], "key_file", base)
    sections["files"] = _join_base(sections["files"], "folder", base)

    authorization = _add_variable_elements(sections["authorization"], environ, file)
    sections["authorization"] = fill_in_provider(authorization, places)

    databases = entries["databases"]
    if not databases:
        databases = (Database(id=DEFAULT_DATABASE, url=f"sqlite:///{base / 'agentctl.db'}"),)
        for field in fields(Database):
            place = Place(str(file), f"databases.{DEFAULT_DATABASE}.{field.name}", given=False)
            places[place.key] = place
    entries["databases"] = _make_absolute(databases, base, places)

    default_database = entries["databases"][0].id
    for name in ("agents", "teams", "workflows"):
        entries[name] = tuple(
            replace(entry, name=entry.name or entry.id, database=entry.database or default_database)
            for entry in entries[name]
        )

    sources = _list_sources(places, environ)
    return Settings(**sections, **entries, added=added, path=file, sources=sources)


def _add_variable_elements(
    authorization: Authorization, environ: Mapping[str, str], file: Path
) -> Authorization:
    """Return the table with the elements of `ADDING_VARIABLES`."""
    for variable, text in _list_added_texts(environ).items():
        key = ADDING_VARIABLES[variable]
        place = Place(str(file), f"authorization.{key}", variable=variable)
        (element,) = validate_value(Authorization, key, [text], place, file.parent)
        # The variable may repeat an element of the file.
        elements: Any = tuple(dict.fromkeys((*getattr(authorization, key), element)))
        authorization = replace(authorization, **{key: elements})
    return authorization


def _list_added_texts(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of the variables in `ADDING_VARIABLES` that are set, by their names."""
    texts = {variable: environ.get(variable, "") for variable in ADDING_VARIABLES}
    return {variable: text for variable, text in texts.items() if text.strip()}


def _list_sources(places: Mapping[str, Place], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the source of each key: the file, a variable, a provider, or `default`."""
    sources = {name: place.source for name, place in places.items() if "[" not in name}
    for variable in _list_added_texts(environ):
        name = f"authorization.{ADDING_VARIABLES[variable]}"
        source = f"env {variable}"
        sources[name] = source if sources[name] == "default" else f"{sources[name]}, {source}"
    return sources


def _add_entries(entries: tuple[Any, ...], name: str, given_tables: GivenTables) -> None:
    """Add the places of the entries of a list of tables.

    Raises:
        InvalidConfiguration: two of them have the same id.
    """
    seen_ids = set[str]()
    for index, entry in enumerate(entries):
        if entry.id in seen_ids:
            given_tables.find_place((name, index, "id")).refuse(
                f'another entry of [[{name}]] has the id "{entry.id}"'
            )
        seen_ids.add(entry.id)
        given_tables.add_places(entry, (name, index))


def _join_base(table: Any, key: str, base: Path) -> Any:
    return replace(table, **{key: base / getattr(table, key)})


def _make_absolute(
    databases: tuple[Database, ...], base: Path, places: Mapping[str, Place]
) -> tuple[Database, ...]:
    """Return the databases with checked URLs; the paths of SQLite files are absolute then."""
    checked_databases = list[Database]()
    for database in databases:
        listen_url = database.listen_url
        if listen_url:
            listen_url = _check_url(database, "listen_url", base, places)
        url = _check_url(database, "url", base, places)
        checked_databases.append(replace(database, url=url, listen_url=listen_url))
    return tuple(checked_databases)


def _check_url(database: Database, name: str, base: Path, places: Mapping[str, Place]) -> str:
    place = places[f"databases.{database.id}.{name}"]
    return check_database_url(getattr(database, name), base, place)


def require_verification_key(settings: Settings) -> None:
    """Check that a server has a verification key, unless authorization is off.

    `load_settings` does not check this: `token mint` and local reads need no verification key.

    Raises:
        InvalidConfiguration: authorization is on, and no key, key file or JWKS is configured.
    """
    table = settings.authorization
    if not table.enabled:
        return

    key_sources = (
        table.verification_keys,
        table.verification_key_files,
        table.jwks_file,
        table.jwks_url,
        table.oidc_discovery,
    )
    if not any(key_sources):
        raise InvalidConfiguration(
            f"{settings.path or 'the configuration'}: authorization: is on, but no verification "
            "key is configured",
            hint="set verification_key_files, jwks_file or jwks_url in [authorization], or "
            "JWT_VERIFICATION_KEY or JWT_JWKS_FILE; `agentctl init` creates a key pair",
        )


SAMPLE_CONFIG = (Path(__file__).parent / "sample.toml").read_text(encoding="utf-8")
"""The file that `agentctl init --full` writes; `sample-config.toml` is a copy of it."""

DEMO_MCP_CONFIG = (Path(__file__).parent / "demo_mcp.toml").read_text(encoding="utf-8")
"""The rest of the file of `serve --demo` if the package for MCP is installed.

`@python@` stands for the interpreter.
"""

DEMO_CONFIG = (Path(__file__).parent / "demo.toml").read_text(encoding="utf-8")
"""The file of `serve --demo`: agents, a team and a workflow that run offline."""
