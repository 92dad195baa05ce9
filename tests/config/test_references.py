"""Rules between tables: ids, references, steps and members."""

from __future__ import annotations

from tests.config.conftest import AGENT, Reads, Refuses
from tests.kit.tables import every_row


def team(id: str, *members: str) -> str:
    return f'\n[[teams]]\nid = "{id}"\nmodel = "fast"\nmembers = {list(members)!r}\n'


def workflow(steps: str) -> str:
    return f'\n[[workflows]]\nid = "flow"\nsteps = {steps}\n'


def model(keys: str) -> str:
    return f'[[models]]\nid = "m"\n{keys}\n'


def database(id: str, url: str) -> str:
    return f'[[databases]]\nid = "{id}"\nurl = "{url}"\n'


SQLITE = '"sqlite:///" and the path of a file, like "sqlite:///agentctl.db"'
POSTGRES = '"postgresql://user@host/name", or "postgresql:///name?host=/run/postgresql&user=me"'
EITHER = f"{SQLITE}; or {POSTGRES}"

WRONG = {
    AGENT + "[[agents]]\nid = 'other'\nmodel = 'fsat'": (
        'agents.other.model: no entry of [[models]] has the id "fsat"; did you mean "fast"?'
    ),
    AGENT + "database = 'x'": (
        'agents.writer.database: no entry of [[databases]] has the id "x"; configured: main'
    ),
    AGENT + "breaker = { within_seconds = 60 }": (
        "agents.writer.breaker.within_seconds: has no effect without failures"
    ),
    "[[agents]]\nid = 'a'\nmodel = 'x'": (
        'agents.a.model: no entry of [[models]] has the id "x"; configured: none'
    ),
    AGENT + team("duo", "writer", "nobody"): (
        'teams.duo.members: no entry of [[agents]] or [[teams]] has the id "nobody"; '
        "configured: writer, duo"
    ),
    AGENT + team("duo"): "teams.duo.members: must have at least one member",
    AGENT + team("duo", "writer", "writer"): 'teams.duo.members: must not contain "writer" twice',
    AGENT + team("duo", "duo"): "teams.duo.members: the team is a member of itself: duo -> duo",
    AGENT + team("a", "b") + team("b", "c") + team("c", "writer", "b"): (
        "teams.b.members: the team is a member of itself: b -> c -> b"
    ),
    AGENT + team("writer", "writer"): (
        'teams.writer.id: an agent has the id "writer" too, and members are ids of both'
    ),
    AGENT + "\n[[agents]]\nid = 'writer'\nmodel = 'fast'": (
        'agents[1].id: another entry of [[agents]] has the id "writer"'
    ),
    "[[agents]]\nmodel = 'fast'": (
        'agents[0].id: is missing; it must be an id: 1 to 64 letters, digits, ".", "_" and "-", '
        "starting with a letter or a digit"
    ),
    "[[agents]]\nid = 'a b'\nmodel = 'fast'": (
        'agents[0].id: must be an id: 1 to 64 letters, digits, ".", "_" and "-", starting with a '
        'letter or a digit, not "a b"'
    ),
    "[[agents]]\nid = 'a'": (
        "agents.a.model: is missing; it must be the id of an entry of [[models]]"
    ),
    "[[workflows]]\nid = 'flow'": (
        "workflows.flow.steps: is missing; it must be a list of steps, "
        'each like { name = "draft", agent = "writer" }'
    ),
    workflow("[]"): "workflows.flow.steps: must have at least one step",
    workflow("['a']"): (
        "workflows.flow.steps: must be a list of steps, "
        'each like { name = "draft", agent = "writer" }'
    ),
    AGENT + workflow("[{ name = 'a' }]"): (
        "workflows.flow.steps[0]: must have exactly one of agent and team"
    ),
    AGENT + team("t", "writer") + workflow("[{ name = 'a', agent = 'writer', team = 't' }]"): (
        "workflows.flow.steps[0]: must have exactly one of agent and team"
    ),
    AGENT + workflow("[{ agent = 'writer' }]"): (
        "workflows.flow.steps[0].name: is missing; it must be a non-empty text"
    ),
    AGENT + workflow("[{ name = 'a', agent = 'writer' }, { name = 'a', agent = 'writer' }]"): (
        'workflows.flow.steps[1].name: another step has the name "a"'
    ),
    AGENT + workflow("[{ name = 'a', team = 'writer' }]"): (
        'workflows.flow.steps[0].team: no entry of [[teams]] has the id "writer"; configured: none'
    ),
    AGENT + workflow("[{ name = 'a', agnet = 'writer' }]"): (
        'workflows.flow.steps[0].agnet: this version has no such key, did you mean "agent"?'
    ),
    AGENT + "tools = ['shop.price']": (
        'agents.writer.tools[0]: must be "package.module:function", "mcp:server" or '
        '"mcp:server.tool", not "shop.price"'
    ),
    model("provider = 'acme'\nmodel = 'x'"): (
        "models.m.provider: must be one of: openai, anthropic, google, bedrock, azure, mistral, "
        'groq, openrouter, ollama, demo, not "acme"'
    ),
    model("provider = 'bedrock'\nmodel = 'x'"): (
        'models.m.region: is missing; the provider "bedrock" needs an AWS region, such as '
        '"eu-central-1"'
    ),
    model("provider = 'azure'\nmodel = 'x'"): (
        'models.m.base_url: is missing; the provider "azure" needs a URL, such as '
        '"https://NAME.openai.azure.com/openai/v1"'
    ),
    model("provider = 'openrouter'\nmodel = 'x'"): (
        'models.m.model: must have the form "VENDOR/MODEL", such as "openai/gpt-5.2"'
    ),
    model("provider = 'openai'\nmodel = 'x'\nregion = 'eu-central-1'"): (
        'models.m.region: has no effect with the provider "openai"'
    ),
    model("provider = 'anthropic'\nmodel = 'x'\nsettings = { seed = 3 }"): (
        'models.m.settings.seed: has no effect with the provider "anthropic"'
    ),
    model(
        "provider = 'bedrock'\nmodel = 'x'\nregion = 'eu-central-1'\napi_key_env = 'KEY'\n"
        "base_url = 'http://127.0.0.1:1'"
    ): 'models.m.base_url: must be "https" if Bedrock is called with an API key',
    model("provider = 'demo'\nmodel = 'gpt'"): (
        'models.m.model: must be "echo", "slow", "leader" or "tool" with the provider "demo"'
    ),
    model("provider = 'demo'\nmodel = 'echo'\nbase_url = 'http://127.0.0.1/v1'"): (
        'models.m.base_url: has no effect with the provider "demo"'
    ),
    model("provider = 'demo'\nmodel = 'echo'\napi_key_env = 'KEY'"): (
        'models.m.api_key_env: has no effect with the provider "demo"'
    ),
    model("provider = 'demo'\nmodel = 'echo'\nretries = 3"): (
        'models.m.retries: has no effect with the provider "demo"'
    ),
    model("provider = 'demo'\nmodel = 'echo'\nsettings = { seed = 1 }"): (
        'models.m.settings: has no effect with the provider "demo"'
    ),
    model("provider = 'openai'\nmodel = 'x'\nsettings = 1"): (
        "models.m.settings: must be a table with temperature, max_tokens, top_p, stop, seed, "
        "reasoning_effort, timeout_seconds, extra_body"
    ),
    model("provider = 'openai'\nmodel = 'x'\nsettings = { temperture = 1 }"): (
        'models.m.settings.temperture: this version has no such key, did you mean "temperature"?'
    ),
    model("provider = 'openai'\nmodel = 'x'\n[models.settings]\ntemperature = 3"): (
        "models.m.settings.temperature: must be a number from 0 to 2, not 3"
    ),
    model("provider = 'openai'\nmodel = 'x'\n[models.settings]\nextra_body = { a = nan }"): (
        "models.m.settings.extra_body: holds a value that JSON does not have"
    ),
    AGENT + "[agents.settings]\nreasoning_effort = 'much'": (
        "agents.writer.settings.reasoning_effort: must be one of: none, minimal, low, medium, "
        'high, xhigh, max, not "much"'
    ),
    model("provider = 'openai'\nmodel = 'x'\nfallbacks = ['n']"): (
        'models.m.fallbacks: no entry of [[models]] has the id "n"; configured: m'
    ),
    model("provider = 'openai'\nmodel = 'x'\nfallbacks = ['m']"): (
        "models.m.fallbacks: the model is a fallback of itself: m -> m"
    ),
    model("provider = 'openai'\nmodel = 'x'\nfallbacks = ['n']")
    + model("provider = 'openai'\nmodel = 'x'\nfallbacks = ['m']").replace(
        'id = "m"', 'id = "n"'
    ): "models.m.fallbacks: the model is a fallback of itself: m -> n -> m",
    database("main", "mysql://me@host/name"): f"databases.main.url: must be {EITHER}",
    database("main", "postgresql://me@host/"): f"databases.main.url: must be {POSTGRES}",
    database("main", "postgresql://me@host:port/name"): f"databases.main.url: must be {POSTGRES}",
    database("main", "postgresql://me:secret@host/name"): (
        "databases.main.url: must not contain a password"
    ),
    database("main", "postgresql:///name?host=/run&password=secret"): (
        "databases.main.url: must not contain a password"
    ),
    database("main", "postgresql://me@host/name?sslmode=require"): (
        'databases.main.url: must not have "sslmode" in its query'
    ),
    database("main", "postgresql://me@host/name") + "search_path = 'a-b'\n": (
        "databases.main.search_path: must be the name of a schema: lower-case letters, digits and "
        '"_", not starting with a digit, not "a-b"'
    ),
    database("main", "postgresql://me@host/name") + "tls_ca_file = 'ca.pem'\n": (
        'databases.main.tls_ca_file: has no effect with tls = "prefer"'
    ),
    database("main", "postgresql://me@host/name") + "listen_url = 'postgresql://me:x@h/name'\n": (
        "databases.main.listen_url: must not contain a password"
    ),
    database("main", "postgresql://me@host/name") + "listen_url = 'sqlite:///a.db'\n": (
        "databases.main.listen_url: must be a URL of PostgreSQL"
    ),
    database("main", "postgresql://me@host/name") + "listen_url = 'postgresql://me@host/name'\n": (
        "databases.main.listen_url: is the url"
    ),
    "[audit]\nheads_file = 'heads.jwt'\n": "audit.heads_file: has no effect without key_file",
    database("main", "sqlite:///a.db") + "listen_url = 'postgresql://me@host/name'\n": (
        "databases.main.listen_url: has no effect for SQLite"
    ),
    database("main", "sqlite:///a.db") + "pool_size = 5\n": (
        "databases.main.pool_size: has no effect for SQLite"
    ),
    database(
        "main", "sqlite:///:memory:"
    ): f"databases.main.url: must be {SQLITE}, without a query",
    database("main", "sqlite:///"): f"databases.main.url: must be {SQLITE}, without a query",
    database("main", "sqlite:///a.db?mode=ro"): (
        f"databases.main.url: must be {SQLITE}, without a query"
    ),
    database("main", "sqlite:///a.db") + database("other", "sqlite:///./x/../a.db"): (
        'databases.other.url: is the same database as "main"'
    ),
}


@every_row("text, expected", WRONG.items())
def test_wrong_reference_is_one_line(text: str, expected: str, refuses: Refuses) -> None:
    assert refuses(text) == expected


def test_team_may_be_a_member_of_several_teams(reads: Reads) -> None:
    settings = reads(
        AGENT
        + team("top", "left", "right")
        + team("left", "base")
        + team("right", "base")
        + team("base", "writer")
    )
    assert [one.id for one in settings.teams] == ["top", "left", "right", "base"]


def test_steps_may_be_written_as_tables(reads: Reads) -> None:
    text = AGENT + (
        "[[workflows]]\nid = 'flow'\n"
        "[[workflows.steps]]\nname = 'one'\nagent = 'writer'\n"
        "[[workflows.steps]]\nname = 'two'\nagent = 'writer'\n"
    )
    assert [step.name for step in reads(text).workflows[0].steps] == ["one", "two"]


def test_names_and_databases_have_defaults(reads: Reads) -> None:
    text = database("first", "sqlite:///1.db") + database("second", "sqlite:///2.db") + AGENT
    agent = reads(text).agents[0]
    assert (agent.name, agent.database) == ("writer", "first")


def test_unset_api_key_variable_is_no_error(reads: Reads) -> None:
    text = model("provider = 'openai'\nmodel = 'x'\napi_key_env = 'NOT_SET_ANYWHERE'")
    assert reads(text).models[0].api_key_env == "NOT_SET_ANYWHERE"
