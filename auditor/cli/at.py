"""``--at URL`` for commands about a cluster: that auditor does the work, so no access to ZooKeeper is needed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from auditor.cli.audit import options as opt
from auditor.cli.audit.runs import first_answer, services

if TYPE_CHECKING:
    from auditor.cli.audit.remote import Remote

Command = TypeVar("Command", bound=Callable[..., None])

_OPTIONS: Mapping[str, Any] = {
    "at": opt.AtOption,
    "token_file": opt.TokenFileOption,
    "ca": opt.CaOption,
    "client_cert": opt.ClientCertOption,
    "client_key": opt.ClientKeyOption,
}


class Service:
    """The auditors at the addresses of ``--at``; the first one that can answer does so."""

    def __init__(self, remotes: Sequence[Remote]) -> None:
        self._remotes = remotes

    def ask(
        self, method: str, path: str, query: Mapping[str, Any] | None = None, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the document that answers a request, without its ``apiVersion`` and ``kind``.

        Args:
            method: of HTTP.
            path: below ``/api/v1``.
            query: parameters; None values are omitted, and a sequence becomes a repeated parameter.
            body: of the request.

        Raises:
            RemoteUnavailableError, RemoteRefusedError: see ``Remote.ask``.
        """
        given = {name: value for name, value in (query or {}).items() if value is not None}
        asked = f"/api/v1{path}" + (f"?{urlencode(given, doseq=True)}" if given else "")
        document = self.document(method, asked, body)
        document.pop("apiVersion", None)
        document.pop("kind", None)
        return document

    def document(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the whole document that answers a request for a path of the server. Raises the errors of ``ask``."""
        return dict(first_answer(self._remotes, lambda remote: remote.ask(method, path, body)))

    @property
    def base(self) -> str:
        """Return the URL of the first auditor, without a user name."""
        return self._remotes[0].base


def reachable(command: Command) -> Command:
    """Give a Typer command the options of a running service; its parameter ``service`` is None without ``--at``."""
    signature = inspect.signature(command, eval_str=True)
    own = [each for each in signature.parameters.values() if each.name != "service"]
    made = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in _OPTIONS.items()
    ]
    keyword_only = [each for each in own if each.kind is inspect.Parameter.KEYWORD_ONLY]
    others = [each for each in own if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    parameters = [*others, *keyword_only, *made]

    def called(*args: Any, **given: Any) -> None:
        reaching = {name: given.pop(name, None) for name in _OPTIONS}
        remotes = services(*reaching.values()) if reaching["at"] else []
        command(*args, **given, service=Service(remotes) if remotes else None)

    called.__name__, called.__doc__, called.__module__ = command.__name__, command.__doc__, command.__module__
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return called  # type: ignore[return-value]
