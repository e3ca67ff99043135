#!/usr/bin/python
# Copyright: Ingot contributors
# Apache-2.0
"""Ask the gateway a question, as a client does, wherever its name leads today."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from typing import Any
from urllib.parse import urlsplit

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: ask_endpoint
short_description: Ask an OpenAI-compatible endpoint for a chat completion
description:
  - A client asks for the host that the certificate is for. Here that name may lead nowhere yet, so the
    connection goes to an address, and what answers there must show a certificate of the given ones for that
    host. The module C(uri) connects to where the name leads, or looks at no certificate at all. Nothing is
    changed.
options:
  url:
    description: The endpoint, as clients know it.
    type: str
    required: true
  address:
    description: Where to connect to.
    type: str
    required: true
  key:
    description: API key.
    type: str
    required: true
  question:
    description: The request.
    type: dict
    required: true
  certificates:
    description: With https, the certificate that must be shown, or those that it was issued by (PEM).
    type: str
    default: ""
  timeout:
    description: Seconds that the endpoint may be silent; by default as many as the gateway lets an engine be.
    type: int
    default: 600
"""

EXAMPLES = r"""
- name: Ask for a chat completion
  ask_endpoint:
    url: https://llm.example.com:8080
    address: 10.0.0.7
    key: "{{ key }}"
    question: {model: m, messages: [{role: user, content: Hello}]}
    certificates: "{{ lookup('ansible.builtin.file', 'certificate.pem') }}"
"""

RETURN = r"""
status:
  description: Status of the answer; 0 when there was none.
  type: int
  returned: always
content:
  description: The answer as text, or why there is none.
  type: str
  returned: always
answer:
  description: The answer, where it is JSON.
  type: dict
  returned: when it is
"""


CONNECT_SECONDS = 30  # a packet filter says nothing: no reason to wait for it as for an answer


def tls(certificates: str) -> ssl.SSLContext:
    """Trust in these certificates and in no others, also where none of them is a root."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=certificates)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def ask(
    url: str, address: str, key: str, question: dict[str, Any], certificates: str, timeout: int
) -> dict[str, Any]:
    """Status and content of the answer."""
    there = urlsplit(url)
    host, port = str(there.hostname), there.port or {"https": 443, "http": 80}[there.scheme]
    connection = http.client.HTTPConnection(host, port)
    try:
        connection.sock = socket.create_connection((address, port), timeout=min(timeout, CONNECT_SECONDS))
        if there.scheme == "https":
            connection.sock = tls(certificates).wrap_socket(connection.sock, server_hostname=host)
        connection.sock.settimeout(timeout)
        connection.request(
            "POST",
            f"{there.path}/v1/chat/completions",
            json.dumps(question),
            {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        answer = connection.getresponse()
        status, content = answer.status, answer.read().decode("utf-8", "replace")
    except ssl.SSLCertVerificationError as error:
        why = f"{address}:{port} shows another certificate than gateway_tls_certificate for {host}"
        return {"status": 0, "content": f"{why} ({error.verify_message})"}
    except ssl.SSLError as error:
        return {"status": 0, "content": f"{address}:{port} does not speak TLS ({error.reason})"}
    except (OSError, http.client.HTTPException) as error:
        return {"status": 0, "content": f"{address}:{port}: {error or type(error).__name__}"}
    finally:
        connection.close()
    try:
        parsed = json.loads(content)
    except ValueError:
        parsed = None
    return {"status": status, "content": content} | ({"answer": parsed} if isinstance(parsed, dict) else {})


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "address": {"type": "str", "required": True},
            "key": {"type": "str", "required": True, "no_log": True},
            "question": {"type": "dict", "required": True},
            "certificates": {"type": "str", "default": ""},
            "timeout": {"type": "int", "default": 600},
        },
        supports_check_mode=True,
    )
    module.exit_json(changed=False, **ask(**module.params))


if __name__ == "__main__":
    main()
