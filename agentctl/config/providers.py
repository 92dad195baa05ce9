"""The model providers: the keys of `[[models]]` that each one uses, and checks of these entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from agentctl.config.places import Place, join_quoted
from agentctl.config.settings import DemoModel, Model, Provider, Settings

_DEMO_IGNORES = (
    "base_url",
    "api_key_env",
    "retries",
    "retry_seconds",
    "fallbacks",
    "settings",
)


@dataclass(frozen=True, slots=True)
class ProviderTraits:
    """The properties of a provider.

    Attributes:
        ignored: keys of `[[models]]` that have no effect.
        ignored_settings: keys of the table `settings` that have no effect.
    """

    ignored: tuple[str, ...] = ()
    ignored_settings: tuple[str, ...] = ()


PROVIDERS: dict[Provider, ProviderTraits] = {
    "openai": ProviderTraits(),
    "demo": ProviderTraits(ignored=_DEMO_IGNORES),
}


def check_models(settings: Settings, places: Mapping[str, Place]) -> None:
    """Check the entries of `[[models]]`.

    Raises:
        InvalidConfiguration: a key has no effect with the provider, a demo model is unknown, or a
            model is a fallback of itself.
    """
    for model in settings.models:
        _check_model(model, places)
    models = {model.id: model for model in settings.models}
    done: set[str] = set()
    for model in settings.models:
        _check_fallbacks(model, models, (), done, places)


def _check_model(model: Model, places: Mapping[str, Place]) -> None:
    key, traits = f"models.{model.id}", PROVIDERS[model.provider]
    names = get_args(DemoModel)
    if model.provider == "demo" and model.model not in names:
        places[f"{key}.model"].refuse(f'must be {join_quoted(names)} with the provider "demo"')
    ignored = (*traits.ignored, *(f"settings.{name}" for name in traits.ignored_settings))
    for name in ignored:
        place = places.get(f"{key}.{name}")
        if place is not None and place.given and not _is_empty(model, name):
            place.refuse(f'has no effect with the provider "{model.provider}"')


def _is_empty(model: Model, name: str) -> bool:
    """Return True if the key has a value that means "not set", such as an empty text."""
    value: object = model
    for part in name.split("."):
        value = getattr(value, part)
    return value in ("", (), type(model.settings)())


def _check_fallbacks(
    model: Model,
    models: Mapping[str, Model],
    above: tuple[str, ...],
    done: set[str],
    places: Mapping[str, Place],
) -> None:
    """Walk through the fallbacks of `model`; `done` are models that are free of cycles."""
    if model.id in above:
        circle = " -> ".join((*above[above.index(model.id) :], model.id))
        places[f"models.{model.id}.fallbacks"].refuse(
            f"the model is a fallback of itself: {circle}"
        )
    if model.id in done:
        return
    for fallback in model.fallbacks:
        if fallback in models:
            _check_fallbacks(models[fallback], models, (*above, model.id), done, places)
    done.add(model.id)
