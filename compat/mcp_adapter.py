"""An agent of LangGraph with the MCP client of LangChain, which needs version 1 of mcp."""

import sys
from pathlib import Path

from langchain_core.messages import AIMessage
from langchain_mcp_adapters.client import MultiServerMCPClient
from langgraph.graph import START, MessagesState, StateGraph

SERVER = Path(__file__).parents[1] / "tests" / "mcp" / "stdio_server.py"


async def answer(state: MessagesState) -> dict[str, list[AIMessage]]:
    """Call the tool `echo` of a server with the last message."""
    client = MultiServerMCPClient(
        {"files": {"transport": "stdio", "command": sys.executable, "args": [str(SERVER)]}}
    )
    (echo,) = [tool for tool in await client.get_tools() if tool.name == "echo"]
    result = await echo.ainvoke({"text": state["messages"][-1].content})
    return {"messages": [AIMessage(str(result))]}


builder = StateGraph(MessagesState)
builder.add_node("answer", answer)
builder.add_edge(START, "answer")
agent = builder.compile()
