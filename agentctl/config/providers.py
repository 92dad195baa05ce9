"""The model providers: the keys of `[[models]]` that each one uses, and checks of these entries."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal, get_args

from agentctl.config.extras import build_extra_command
from agentctl.config.places import Place, join_quoted
from agentctl.config.settings import DemoModel, Model, ModelSettings, Provider, Settings
from agentctl.errors import InvalidConfiguration

_MODEL_LIBRARY = "pydantic_ai"
"""The library with the models of the providers that need one; their extras install it."""

_SPECIAL_KEYS = ("region", "api_version")
"""Keys that only the providers with them in `ProviderTraits.used` have."""


@dataclass(frozen=True, slots=True)
class ProviderTraits:
    """The properties of a provider."""

    url: str = ""
    """URL of its interface; empty if `base_url` or its library has it.

    It is set explicitly, so that a variable such as OPENAI_BASE_URL does not redirect a configured
    model.
    """

    extra: str = ""
    """The extra of this package with the library; empty if none is needed."""

    library: str = ""
    """Module of that library."""

    client: str = ""
    """Package of the client that agents in code use; its exceptions are failures of the model.

    Empty if that is the client of another provider, or the one of `library` raises exceptions of a
    package that other code uses, too.
    """

    otel_name: str = ""
    """Name of the provider in the conventions of OpenTelemetry; empty if it is the same."""

    variable: str = ""
    """The usual environment variable with its API key.

    For a model that is named without an entry (`serve --demo --model`).
    """

    key: Literal["unless_url", "always", "optional"] = "unless_url"
    """If an API key is required; "unless_url": without `base_url`."""

    required: Mapping[str, str] = field(default_factory=dict)
    """Keys of `[[models]]` that must be given, with the description of their value."""

    used: tuple[str, ...] = ()
    """Keys that other providers do not have."""

    ignored: tuple[str, ...] = ()
    """Keys of `[[models]]` that have no effect."""

    ignored_settings: tuple[str, ...] = ()
    """Keys of the table `settings` that have no effect."""


PROVIDERS: dict[Provider, ProviderTraits] = {
    "openai": ProviderTraits(
        url="https://api.openai.com/v1", client="openai", variable="OPENAI_API_KEY"
    ),
    "anthropic": ProviderTraits(
        url="https://api.anthropic.com",
        extra="anthropic",
        library="anthropic",
        client="anthropic",
        variable="ANTHROPIC_API_KEY",
        ignored_settings=("seed",),
    ),
    "google": ProviderTraits(
        url="https://generativelanguage.googleapis.com",
        extra="google",
        library="google.genai",
        client="google.genai",
        otel_name="gcp.gemini",
        variable="GEMINI_API_KEY",
        ignored_settings=("extra_body",),
    ),
    "bedrock": ProviderTraits(
        extra="bedrock",
        library="boto3",
        otel_name="aws.bedrock",
        key="optional",
        required={"region": 'an AWS region, such as "eu-central-1"'},
        used=("region",),
        ignored_settings=("seed", "extra_body"),
    ),
    "azure": ProviderTraits(
        otel_name="azure.ai.openai",
        key="always",
        required={"base_url": 'a URL, such as "https://NAME.openai.azure.com/openai/v1"'},
        used=("api_version",),
    ),
    "mistral": ProviderTraits(
        url="https://api.mistral.ai",
        extra="mistral",
        library="mistralai",
        client="mistralai",
        otel_name="mistral_ai",
        variable="MISTRAL_API_KEY",
        ignored_settings=("extra_body",),
    ),
    "groq": ProviderTraits(
        url="https://api.groq.com/openai/v1", client="groq", variable="GROQ_API_KEY"
    ),
    "openrouter": ProviderTraits(url="https://openrouter.ai/api/v1", variable="OPENROUTER_API_KEY"),
    "ollama": ProviderTraits(url="http://127.0.0.1:11434/v1", client="ollama", key="optional"),
    "demo": ProviderTraits(
        key="optional", ignored=("base_url", "api_key_env", "retries", "fallbacks", "settings")
    ),
}


def find_url(model: Model) -> str:
    """Return the URL of the interface that a model is called at; empty if its library has it."""
    return model.base_url or PROVIDERS[model.provider].url


def requires_key(model: Model) -> bool:
    """Return True if the provider of a model accepts no call without an API key."""
    rule = PROVIDERS[model.provider].key
    return rule == "always" or (rule == "unless_url" and not model.base_url)


def find_missing_extra(model: Model) -> str | None:
    """Return the extra of this package that a model needs and that is not installed, or None."""
    traits = PROVIDERS[model.provider]
    if not traits.library:
        return None

    try:
        libraries = [importlib.util.find_spec(name) for name in (traits.library, _MODEL_LIBRARY)]
    except ModuleNotFoundError:
        # Of a name with a dot, the package is missing.
        return traits.extra
    return None if all(libraries) else traits.extra


def list_used_models(settings: Settings) -> list[Model]:
    """Return the models of agents and teams, and the fallbacks, in order; without demo models."""
    used = {agent.model for agent in settings.agents} | {team.model for team in settings.teams}
    used |= {fallback for model in settings.models for fallback in model.fallbacks}
    return [model for model in settings.models if model.id in used and model.provider != "demo"]


def require_extra(model: Model) -> None:
    """Raise InvalidConfiguration if the library of a model is not installed."""
    missing_extra = find_missing_extra(model)
    if missing_extra:
        raise InvalidConfiguration(
            f"the library of the model {model.id} (provider {model.provider}) is not installed",
            hint=build_extra_command(missing_extra),
        )


def check_models(settings: Settings, places: Mapping[str, Place]) -> None:
    """Check the entries of `[[models]]`.

    Raises:
        InvalidConfiguration: a key has no effect with the provider, a demo model is unknown, or a
            model is a fallback of itself.
    """
    for model in settings.models:
        _check_model(model, places)

    fallbacks = {model.id: model.fallbacks for model in settings.models}
    checked_ids: set[str] = set()
    for model_id in fallbacks:
        cycle = find_cycle(model_id, fallbacks, checked_ids)
        if cycle:
            places[f"models.{cycle[-1]}.fallbacks"].refuse(
                f"the model is a fallback of itself: {' -> '.join(cycle)}"
            )


def find_cycle(
    start: str, links: Mapping[str, Iterable[str]], done: set[str], above: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Return the first cycle that `start` leads to; empty if it leads to none.

    For example, the links `{"a": ["b"], "b": ["a"]}` have the cycle `("a", "b", "a")`.

    Args:
        done: names that lead to no cycle; this function adds to them.
        above: the names that lead to `start`.
    """
    if start in above:
        return (*above[above.index(start) :], start)
    if start in done:
        return ()

    for name in links.get(start, ()):
        cycle = find_cycle(name, links, done, (*above, start))
        if cycle:
            return cycle
    done.add(start)
    return ()


def _check_model(model: Model, places: Mapping[str, Place]) -> None:
    """Check the keys of an entry by the traits of its provider."""
    key = f"models.{model.id}"
    traits = PROVIDERS[model.provider]

    demo_names = get_args(DemoModel)
    if model.provider == "demo" and model.model not in demo_names:
        places[f"{key}.model"].refuse(f'must be {join_quoted(demo_names)} with the provider "demo"')

    for name, description in traits.required.items():
        if not getattr(model, name):
            places[f"{key}.{name}"].refuse(
                f'is missing; the provider "{model.provider}" needs {description}'
            )

    if model.provider == "bedrock" and model.api_key_env and model.base_url.startswith("http:"):
        places[f"{key}.base_url"].refuse('must be "https" if Bedrock is called with an API key')
    if model.provider == "openrouter" and "/" not in model.model:
        places[f"{key}.model"].refuse('must have the form "VENDOR/MODEL", such as "openai/gpt-5.2"')

    keys_of_others = [name for name in _SPECIAL_KEYS if name not in traits.used]
    ignored_settings = [f"settings.{name}" for name in traits.ignored_settings]
    for name in (*traits.ignored, *keys_of_others, *ignored_settings):
        place = places.get(f"{key}.{name}")
        is_empty = attrgetter(name)(model) in ("", (), ModelSettings())
        if place is not None and place.given and not is_empty:
            place.refuse(f'has no effect with the provider "{model.provider}"')
