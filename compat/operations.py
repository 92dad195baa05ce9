"""The operations of AgentOS: which of its clients can use them here, and the tests that show it.

`ROWS` is the source of the table in docs/agentos.md, which `compat.page` writes.
`compat/test_operations.py` checks that the page is current, that the tests exist, and that no
operation of the client of AgentOS is missing.
"""

from __future__ import annotations

from compat.cells import Cell, Row, refused, works

__all__ = ["ROWS"]

_CLIENTS = "test_clients.py"
_UI = "test_agent_ui.py"
_OPERATIONS = "agentos_client.py"
_CONTINUATIONS = "test_continuations.py"

ROWS: tuple[Row, ...] = (
    Row(
        "Recognise the server",
        Cell(
            "works",
            _CLIENTS,
            "test_agnoctl_works",
            "`agnoctl status`; `agno_version` is the version of the interface, 2.7.2",
        ),
        works(_UI, "test_page_connects_and_lists"),
    ),
    Row(
        "Wrong or missing token",
        works(_CLIENTS, "test_tokens_have_the_known_answers", "see [Tokens](#tokens)"),
        works(_UI, "test_page_connects_and_lists"),
    ),
    Row(
        "Configuration",
        works(
            _OPERATIONS,
            "client_get_config client_aget_config client_get_models",
            "`available_models` is empty, because the releases expect different types",
        ),
        methods=("get_config", "aget_config"),
    ),
    Row(
        "List agents, teams, workflows",
        works(_OPERATIONS, "client_list_agents client_list_teams client_list_workflows"),
        works(_UI, "test_page_connects_and_lists"),
        methods=("list_agents", "list_teams", "list_workflows"),
    ),
    Row(
        "Get an agent, team, workflow",
        works(
            _OPERATIONS,
            "client_get_agent client_aget_agent client_get_team client_aget_team"
            " client_get_workflow client_aget_workflow client_get_unknown_agent",
            "instructions are not shown",
        ),
        methods=(
            "get_agent", "aget_agent", "get_team", "aget_team", "get_workflow", "aget_workflow",
        ),
    ),
    Row(
        "Run, plain",
        works(
            _OPERATIONS,
            "client_run_agent client_run_agent_with_tool client_run_team client_run_workflow",
        ),
        methods=("run_agent", "run_team", "run_workflow"),
    ),
    Row(
        "Run, streamed",
        works(
            _OPERATIONS,
            "client_run_agent_stream client_run_team_stream client_run_workflow_stream",
            "see [Events](#events)",
        ),
        works(_UI, "test_page_chats_and_opens_the_session test_agent_ui_works_in_a_browser"),
        methods=("run_agent_stream", "run_team_stream", "run_workflow_stream"),
    ),
    Row(
        "Run in the background",
        works(_OPERATIONS, "client_run_agent_in_background"),
    ),
    Row(
        "Run that fails",
        works(
            _OPERATIONS, "client_run_agent_that_fails client_run_agent_stream_that_fails"
        ),
        works(_UI, "test_page_shows_a_failure_and_the_own_line"),
    ),
    Row(
        "Run with `session_state`, `metadata`, `dependencies`, `output_schema`",
        works(
            _OPERATIONS,
            "client_run_agent_with_state client_run_agent_with_dependencies",
            "other fields of a form are ignored: AgentOS passes them to the code of the agent, so"
            " a client could set any argument",
        ),
    ),
    Row(
        "Run with media by URL",
        refused(
            _OPERATIONS,
            "refused_image",
            "422: no URL is fetched; images, sound and files as base64 or as parts of a form work",
        ),
    ),
    Row(
        "Run with `knowledge_filters`, `factory_input`",
        refused(
            _OPERATIONS,
            "refused_knowledge_filters",
            "422: there are no knowledge bases and no factories",
        ),
    ),
    Row(
        "Continue a paused run",
        works(
            _OPERATIONS,
            "client_continue_agent_run client_continue_agent_run_stream"
            " client_continue_rejected_agent_run client_continue_team_run"
            " client_continue_team_run_stream client_continue_workflow_run"
            " client_continue_workflow_run_stream refused_changed_arguments"
            " refused_second_continue",
            "see [Paused runs](#paused-runs)",
        ),
        methods=(
            "continue_agent_run", "continue_agent_run_stream", "continue_team_run",
            "continue_team_run_stream", "continue_workflow_run", "continue_workflow_run_stream",
        ),
    ),
    Row(
        "Continue another run, fork, checkpoints",
        refused(
            _OPERATIONS,
            "refused_continue_of_a_run",
            "409 for a run that is not paused, 422 for `fork` and `regenerate`, 404 for other"
            " routes: a run is not changed after its end",
        ),
    ),
    Row(
        "Follow a run",
        works(
            _CLIENTS,
            "test_resumed_stream_numbers_its_events",
            "no events `replay`, `catch_up` and `subscribed`: all events are sent",
        ),
    ),
    Row(
        "Cancel",
        works(
            _OPERATIONS,
            "client_cancel_agent_run client_cancel_team_run client_cancel_workflow_run"
            " client_cancel_finished_run client_cancel_paused_agent_run",
            "works without `session_id` as well; the run must be visible to the caller",
        ),
        methods=("cancel_agent_run", "cancel_team_run", "cancel_workflow_run"),
    ),
    Row(
        "Cancel an unknown run",
        refused(
            _OPERATIONS,
            "refused_cancel_of_an_unknown_run",
            "404: AgentOS reports success and cancels a later run with the id",
        ),
    ),
    Row(
        "List sessions",
        works(
            _OPERATIONS,
            "client_get_sessions client_get_sessions_of_a_kind client_get_many_sessions",
            "at most 1,000 entries, without `session_state` and `metadata`: reading them for each"
            " entry would make lists slower; get the session",
        ),
        works(_UI, "test_page_chats_and_opens_the_session"),
        methods=("get_sessions",),
    ),
    Row(
        "Get a session",
        works(
            _OPERATIONS,
            "client_get_agent_session client_get_team_session client_get_workflow_session"
            " client_get_unknown_session",
        ),
        methods=("get_session",),
    ),
    Row(
        "Runs of a session",
        works(
            _OPERATIONS,
            "client_get_agent_session_runs client_get_team_session_runs"
            " client_get_workflow_session_runs client_get_recent_session_runs"
            " client_get_session_runs_with_status client_get_session_run"
            " client_get_session_run_previews",
            "at most the first 1,000 runs; runs of a session whose first run works are a 404, as"
            " in 2.7.2",
        ),
        works(
            _UI,
            "test_page_chats_and_opens_the_session test_page_shows_members_before_their_team"
            " test_page_reads_a_session_whose_run_works",
        ),
        methods=(
            "get_session_runs", "get_session_run", "get_session_run_previews",
            "aget_session_run_previews",
        ),
    ),
    Row(
        "Create a session",
        works(
            _OPERATIONS,
            "client_create_agent_session client_create_team_session client_create_workflow_session",
            "an id that is taken is a 409, as in 3.1.10",
        ),
        methods=("create_session",),
    ),
    Row(
        "Rename a session",
        works(_OPERATIONS, "client_rename_session"),
        methods=("rename_session",),
    ),
    Row(
        "Change a session",
        works(
            _OPERATIONS,
            "client_update_session_name client_update_session_state"
            " client_update_session_metadata refused_summary_of_a_session",
            "`summary` is a 422: the server writes it",
        ),
        methods=("update_session",),
    ),
    Row(
        "Delete sessions",
        works(
            _OPERATIONS,
            "client_delete_session client_delete_unknown_session client_delete_sessions",
        ),
        works(_UI, "test_page_chats_and_opens_the_session test_agent_ui_works_in_a_browser"),
        methods=("delete_session", "delete_sessions"),
    ),
    Row(
        "Memories: list",
        works(_OPERATIONS, "memory_list memory_search"),
        methods=("list_memories",),
    ),
    Row(
        "Memories: get, create, change, delete, topics",
        works(
            _OPERATIONS,
            "memory_create memory_get memory_update memory_topics memory_delete"
            " memory_delete_several memory_delete_unknown",
            "the user of a memory does not change",
        ),
        methods=(
            "create_memory", "get_memory", "update_memory", "delete_memory", "delete_memories",
            "get_memory_topics",
        ),
    ),
    Row(
        "Memories: numbers of users, optimization",
        refused(
            _OPERATIONS,
            "refused_memory_stats absent_optimize_memories",
            "404: `agentctl memories list` counts them; memories are not rewritten",
        ),
        methods=("get_user_memory_stats", "optimize_memories"),
    ),
    Row(
        "Service accounts",
        works(
            _CLIENTS,
            "test_agnoctl_works test_accounts_have_default_scopes_and_times_as_numbers",
            "`agnoctl tokens`; names and scopes are those of the contract, `token_prefix` is the"
            " end of the token",
        ),
    ),
    Row(
        "Connection of coding agents (MCP)",
        works(
            _CLIENTS,
            "test_agnoctl_works",
            "`agnoctl connect`, with `mcp_endpoint.enabled`",
        ),
    ),
    Row(
        "Approvals",
        works(
            _CONTINUATIONS,
            "test_approvals_are_listed_and_counted test_decision_of_the_approver_wins"
            " test_resolution_is_bound_to_the_shown_call",
            "see [Paused runs](#paused-runs)",
        ),
    ),
    Row(
        "Remote agents, teams, workflows",
        works(
            _OPERATIONS,
            "remote_agent_name remote_agent_description remote_agent_tools remote_agent_database"
            " remote_agent_refresh remote_agent_run remote_agent_stream remote_agent_cancel"
            " remote_agent_continue"
            " remote_team_name remote_team_tools remote_team_database remote_team_refresh"
            " remote_team_run remote_team_stream remote_team_cancel remote_workflow_name"
            " remote_workflow_database remote_workflow_refresh remote_workflow_run"
            " remote_workflow_stream remote_workflow_cancel",
            "without authorization: they read their configuration without a token, also on"
            " servers of AgentOS",
        ),
    ),
    Row(
        "An AgentOS as a gateway",
        works(
            _CLIENTS,
            "test_an_agentos_is_a_gateway_to_this_server",
            "without authorization, as remote agents",
        ),
    ),
    Row(
        "Migration of a database",
        refused(_OPERATIONS, "absent_migrate_database", "404: `agentctl db migrate` does it"),
        methods=("migrate_database",),
    ),
    Row(
        "Evals, knowledge, traces, metrics, schedules, `/workflows/ws`",
        refused(
            _OPERATIONS,
            "absent_eval_runs absent_knowledge absent_traces absent_metrics",
            "404: this server has none",
        ),
        methods=(
            "list_eval_runs", "get_eval_run", "run_eval", "update_eval_run", "delete_eval_runs",
            "list_knowledge_content", "get_knowledge_config", "get_knowledge_content",
            "get_knowledge_content_status", "search_knowledge", "update_knowledge_content",
            "upload_knowledge_content", "delete_knowledge_content",
            "delete_all_knowledge_content", "get_trace", "get_traces", "search_traces",
            "get_trace_session_stats", "get_metrics", "get_metrics_refresh_status",
            "refresh_metrics",
        ),
    ),
)  # fmt: skip
"""The operations, in the order of the page."""
