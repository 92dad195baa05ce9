"""Public texts of what a provider refuses: the API key, or the model.

They name the setting to check, and the environment variable of a key. They never have its value, or
a text of the provider.
"""

from __future__ import annotations

from agentctl.config.providers import PROVIDERS, ProviderTraits
from agentctl.config.settings import Model
from agentctl.runtime.failures import FailureCode


def describe_refusal(code: FailureCode, status: int | None, model: Model) -> str | None:
    """Return the text of a refused call of a configured model; None for the text of its code.

    Args:
        status: HTTP status of the response; None if there is none.
    """
    number = _format_status(status)
    if code == "MODEL_KEY_REJECTED":
        place = _name_key(model)
        if status == 403:
            return (
                f"The provider denied access to the model {model.id}{number}: check the rights of"
                f" the key in {place}"
            )
        return f"The provider rejected the API key of the model {model.id}{number}: check {place}"

    if code == "MODEL_NOT_FOUND":
        return (
            f"The provider does not have the model {model.model}{number}: check model and"
            f" base_url of the model {model.id}"
        )

    if code == "MODEL_REJECTED" and status is not None:
        return f"The model {model.id} refused the request{number}"
    return None


def describe_missing_key(model: Model) -> str:
    """Return the text of a model that cannot be called, because its key is not set."""
    if model.api_key_env:
        return f"The API key of the model {model.id} is not set: set {model.api_key_env}"
    return f"The API key of the model {model.id} is not set: its api_key_env names no variable"


def describe_client_refusal(
    code: FailureCode, status: int | None, client: str = "", model: str = ""
) -> str | None:
    """Return the text of a refused call of a model that the code of an agent has made.

    None for the text of its code.

    Args:
        client: package of the client that made the call, such as "openai"; "" if it is not known.
        model: the name of the model as its library has it; "" if it is not known.
    """
    number = _format_status(status)
    if code == "MODEL_KEY_REJECTED":
        variable = _VARIABLES.get(client, "")
        example = f", such as {variable}" if variable else ""
        return (
            f"The provider rejected the API key of the agent's model{number}: check the key that"
            f" the code of the agent uses{example}"
        )

    if code == "MODEL_NOT_FOUND":
        name = f"model {model}" if model else "model of the agent"
        return (
            f"The provider does not have the {name}{number}: check its name in the code of the"
            " agent"
        )

    if code == "MODEL_REJECTED" and status is not None:
        return f"The model refused the request{number}"
    return None


def _format_status(status: int | None) -> str:
    return "" if status is None else f" (HTTP {status})"


def _name_key(model: Model) -> str:
    """Name the place of the key of a model."""
    if model.api_key_env:
        return f"the variable {model.api_key_env}"
    if model.provider == "bedrock":
        return "the AWS credentials of the server"
    return f"api_key_env of the model {model.id}, which is not set"


def _find_client(provider: str, traits: ProviderTraits) -> str:
    """Return the package that calls a provider from the code of an agent."""
    return traits.library or provider


_VARIABLES = {
    _find_client(provider, traits): traits.variable for provider, traits in PROVIDERS.items()
}
"""The usual variable with the key, by the package of a client."""
