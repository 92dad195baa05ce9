"""Receives the webhooks of agentctl, and sends each event as a mail and to a chat."""

import json
import os
import smtplib
import urllib.request
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook, WebhookVerificationError

webhook = Webhook(os.environ["OPS_WEBHOOK_SECRET"])
sent = set()


def alert(text: str) -> None:
    mail = EmailMessage()
    mail["Subject"] = text.splitlines()[0]
    mail["To"] = os.environ["ALERT_MAIL"]
    mail["From"] = os.environ.get("ALERT_FROM", os.environ["ALERT_MAIL"])
    mail.set_content(text)
    host, _, port = os.environ.get("ALERT_SMTP", "localhost:25").partition(":")
    with smtplib.SMTP(host, int(port or 25), timeout=5) as server:
        server.send_message(mail)
    if url := os.environ.get("ALERT_CHAT"):  # an incoming webhook of Slack, Mattermost, …
        message = json.dumps({"text": text}).encode()
        kind = {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(url, message, kind), timeout=5).close()


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        try:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            event = webhook.verify(body, dict(self.headers))
        except WebhookVerificationError:
            self.send_error(401)
            return
        if self.headers["webhook-id"] not in sent:
            data = event["data"]
            facts = "component_id", "user_id", "error_code", "tool_name", "run_id", "console_url"
            lines = [f"{name}: {data[name]}" for name in facts if data.get(name)]
            alert("\n".join([f"agentctl: {event['type']}", *lines]))
            sent.add(self.headers["webhook-id"])  # After a failure the server sends it again.
        self.send_response(204)
        self.end_headers()


if __name__ == "__main__":
    address = os.environ.get("ALERT_HOST", "127.0.0.1"), int(os.environ.get("ALERT_PORT", "8080"))
    ThreadingHTTPServer(address, Receiver).serve_forever()
