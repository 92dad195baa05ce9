"""A server with webhooks, and a receiver of its events."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agentctl.webhooks import attempts
from agentctl.webhooks.signing import generate_secret
from tests.approvals.people import People
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import serve_in_thread
from tests.webhooks.receiver import Receiver, start_receiver

SECRET = generate_secret()
OLD_SECRET = generate_secret()
ALL = (
    '["run.completed", "run.failed", "run.cancelled", "run.paused", "approval.decided",'
    ' "approval.expired"]'
)

SETTINGS = """
[[agents]]
id = "payer"
object = "paying_agent:wait_for_people"

[[agents]]
id = "long"
object = "long_agent:answer"

[[agents]]
id = "doomed"
object = "long_agent:fail"

[[workflows]]
id = "chain"
steps = [{{ name = "one", agent = "long" }}, {{ name = "two", agent = "long" }}]

[[webhooks]]
id = "all"
url = "{url}/all"
events = {all}
secret_env = "HOOK_SECRET"
previous_secret_env = "HOOK_OLD_SECRET"
allow_private = true

[[webhooks]]
id = "flaky"
url = "{url}/flaky"
events = ["run.completed"]
secret_env = "HOOK_SECRET"
allow_private = true

[[webhooks]]
id = "signed"
url = "{url}/signed"
events = ["run.completed"]
key_file = "webhook.pem"
agents = ["long"]
content = true
allow_private = true

[[webhooks]]
id = "gone"
url = "{url}/gone"
events = ["run.failed"]
secret_env = "HOOK_SECRET"
allow_private = true

[[webhooks]]
id = "redirected"
url = "{url}/redirected"
events = ["run.failed"]
secret_env = "HOOK_SECRET"
allow_private = true

[[webhooks]]
id = "guarded"
url = "https://localhost:1/guarded"
events = ["run.failed"]
secret_env = "HOOK_SECRET"
"""

LONG_AGENT = """
async def answer(message, context):
    return "häßlich " * int(message) if message.isdigit() else message


async def fail(message, context):
    raise RuntimeError("secret text")
"""


def write_key(file: Path) -> None:
    """Write a private key for signatures with ed25519."""
    key = Ed25519PrivateKey.generate()
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


@pytest.fixture(scope="session")
def receiver() -> Iterator[Receiver]:
    with start_receiver() as started:
        yield started


@pytest.fixture(scope="session")
def hooked(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint, receiver: Receiver
) -> Iterator[Deployment]:
    """A configuration with webhooks."""
    folder = tmp_path_factory.mktemp("hooked")
    shutil.copy(Path(__file__).parents[1] / "approvals" / "paying_agent.py", folder)
    (folder / "ledger.jsonl").touch()
    (folder / "long_agent.py").write_text(LONG_AGENT)
    write_key(folder / "webhook.pem")
    extra = SETTINGS.format(url=receiver.url, all=ALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOOK_SECRET", SECRET)
        patch.setenv("HOOK_OLD_SECRET", OLD_SECRET)
        patch.setattr(attempts, "SCHEDULE", (0, 0.1, 0.1, 0.1))
        yield create_deployment(folder, model_endpoint.base_url, extra=extra)


@pytest.fixture(scope="session")
def people(hooked: Deployment) -> Iterator[People]:
    """People who use a server with webhooks."""
    with serve_in_thread(hooked) as host:
        yield People(host)
