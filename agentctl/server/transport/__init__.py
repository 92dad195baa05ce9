"""The guard of the requests, and uvicorn's protocol with limits (decision 30).

No other package imports uvicorn. The classes of this one depend on these names of it, none of which
is documented. Each release of uvicorn may change them; then `tests/server/test_http_cases.py` and
`test_http_limits.py` fail.

- `HttpToolsProtocol`: the callbacks of its parser and of its transport, `on_response_complete`,
  `timeout_keep_alive_handler`, `app`, `cycle`, `expect_100_continue`, `flow`, `headers`, `loop`,
  `parser`, `pipeline`, `scope`, `timeout_keep_alive_task`, `transport`, `url`.
- Its `cycle`: `chunked_encoding`, `expected_content_length`, `keep_alive`, `response_complete`,
  `response_started`.
- `ServerState`: `connections`, `tasks`. `Server`: `lifespan`, `main_loop`, `on_tick`, `servers`.
"""
