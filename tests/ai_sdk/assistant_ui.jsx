// A chat of assistant-ui with its own transport, for one component.
import {
  AssistantRuntimeProvider, ComposerPrimitive, MessagePrimitive, ThreadPrimitive,
} from "@assistant-ui/react";
import { AssistantChatTransport, useChatRuntime } from "@assistant-ui/react-ai-sdk";
import { lastAssistantMessageIsCompleteWithApprovalResponses } from "ai";
import { useState } from "react";
import { createRoot } from "react-dom/client";

const api = "http://127.0.0.1:7777/ai/agents/clerk";
const headers = { Authorization: `Bearer ${sessionStorage.token}` };
const transport = new AssistantChatTransport({ api, headers });

const Text = ({ text }) => <p className="text">{text}</p>;
const Reasoning = ({ text }) => <p className="reasoning">{text}</p>;

function Tool({ toolName, result, approval, respondToApproval }) {
  return approval && approval.approved === undefined
    ? <button onClick={() => respondToApproval({ approved: true })}>Approve {toolName}</button>
    : <p className="call">{toolName}: {JSON.stringify(result ?? null)}</p>;
}

const parts = { Text, Reasoning, tools: { Fallback: Tool } };
const User = () => <section className="user"><MessagePrimitive.Parts /></section>;
const Assistant = () =>
  <section className="assistant"><MessagePrimitive.Parts components={parts} /></section>;

function Chat() {
  const [error, setError] = useState("");
  const runtime = useChatRuntime({
    transport,
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
    onError: ({ message }) => setError(message),
  });
  return <AssistantRuntimeProvider runtime={runtime}>
    <ThreadPrimitive.Root>
      <ThreadPrimitive.Messages
        components={{ UserMessage: User, AssistantMessage: Assistant }} />
      <p className="error">{error}</p>
      <ComposerPrimitive.Root>
        <ComposerPrimitive.Input />
        <ComposerPrimitive.AddAttachment>Attach</ComposerPrimitive.AddAttachment>
        <ThreadPrimitive.If running><ComposerPrimitive.Cancel>Stop</ComposerPrimitive.Cancel>
        </ThreadPrimitive.If>
        <ComposerPrimitive.Send>Send</ComposerPrimitive.Send>
      </ComposerPrimitive.Root>
    </ThreadPrimitive.Root>
  </AssistantRuntimeProvider>;
}

createRoot(document.getElementById("root")).render(<Chat />);
