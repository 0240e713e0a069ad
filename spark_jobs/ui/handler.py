"""Answer the tab's requests: text in, text out, even if something fails inside.

Many threads of the JVM's web server call it at the same time. It never raises, because Spark's page would show an error
of Python as one of Java. The logger ``bkheal.audit`` logs who requested each action, including refused ones.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import Final

from bookie.model.times import utc_text
from bookie.runtime.clock import Clock
from spark_jobs.ui.bounded import ActionRate, OneCall, Snapshots
from spark_jobs.ui.page import render_notice, render_page
from spark_jobs.ui.port import ActionOutcome, ActionResult, TabActions
from spark_jobs.ui.request import Answer, InvalidCallError, TabRequest, decode_request, encode_answer, json_answer
from spark_jobs.ui.routes import (
    STATUS_PATH,
    TAB_PATH,
    TOKEN_PATH,
    Action,
    BadActionError,
    is_action_path,
    parse_action,
)
from spark_jobs.ui.rules import Refusal, permission_refusal, refusal, safe_base
from spark_jobs.ui.settings import TabSettings
from spark_jobs.ui.status_json import status_values
from spark_jobs.ui.view import PageInput

_log = logging.getLogger(__name__)
_audit_log = logging.getLogger("bkheal.audit")

_BURST: Final = 10
_REFUSALS_LOGGED_PER_MINUTE: Final = 60
"""The bound keeps refused requests from filling the log."""
_STATUS: Final = {
    ActionOutcome.ACCEPTED: 202,
    ActionOutcome.BUSY: 409,
    ActionOutcome.REFUSED: 409,
    ActionOutcome.UNKNOWN: 404,
    ActionOutcome.UNAVAILABLE: 503,
}
_LOGGED_MAX: Final = 200


class TabHandler:
    """The Python side of the tab."""

    def __init__(self, actions: TabActions, settings: TabSettings, clock: Clock, *, key: str, token: str) -> None:
        """Only store the arguments.

        Args:
            actions: runs audits.
            settings: how the tab behaves.
            clock: for ages and the rate limit.
            key: secret of the Java side, which proves that a call comes from there.
            token: is sent by each button, so that no other site can press it.
        """
        self._actions = actions
        self._settings = settings
        self._clock = clock
        self._key = key
        self._token = token
        self._snapshots = Snapshots(actions.snapshot, clock, settings.snapshot_age_max_s, settings.snapshot_deadline_s)
        self._calls: OneCall[ActionResult] = OneCall("auditor-tab-action")
        self._rate = ActionRate(clock, settings.actions_per_minute, _BURST)
        self._refusals = ActionRate(clock, _REFUSALS_LOGGED_PER_MINUTE, _REFUSALS_LOGGED_PER_MINUTE)
        self._lock = threading.Lock()
        self._last_request = ""

    def page(self, facts: str) -> str:
        """Return the content of the page."""
        try:
            return self._page(decode_request(facts, self._key))
        except InvalidCallError as error:
            _log.warning("unexpected call to the tab", extra={"reason": str(error)[:_LOGGED_MAX]})
        except Exception:  # noqa: BLE001  the boundary to the JVM
            _log.exception("page of the tab failed")
        return '<div class="alert alert-danger">The page failed; see the log of the driver.</div>'

    def api(self, facts: str) -> str:
        """Return the answer of the servlet for actions and programs."""
        try:
            return encode_answer(self._api(decode_request(facts, self._key)))
        except InvalidCallError as error:
            _log.warning("unexpected call to the tab", extra={"reason": str(error)[:_LOGGED_MAX]})
            return encode_answer(Answer(403, "Forbidden.\n", "text/plain; charset=utf-8"))
        except Exception:  # noqa: BLE001  the boundary to the JVM
            _log.exception("request to the tab failed")
            return encode_answer(Answer(500, "The request failed; see the log of the driver.\n", "text/plain"))

    def _page(self, request: TabRequest) -> str:
        state, trouble = self._snapshots.get()
        forbidden = permission_refusal(request, self._settings)
        with self._lock:
            last_request = self._last_request
        return render_page(
            PageInput(
                state,
                self._settings,
                self._clock.epoch_ms(),
                base=safe_base(request, self._settings),
                trouble=trouble,
                no_buttons=forbidden.text if forbidden else "",
                token="" if forbidden else self._token,
                last_request=last_request,
            )
        )

    def _api(self, request: TabRequest) -> Answer:
        if is_action_path(request.path):
            return self._act(request)
        if request.path not in (STATUS_PATH, TOKEN_PATH):
            return json_answer(404, {"error": "nothing is served here", "see": [STATUS_PATH, TOKEN_PATH]})
        if request.method not in ("GET", "HEAD"):
            return json_answer(405, {"error": "only GET and HEAD"}, (("Allow", "GET, HEAD"),))
        if request.path == STATUS_PATH:
            state, trouble = self._snapshots.get()
            return json_answer(200 if state else 503, status_values(state, trouble))
        forbidden = permission_refusal(request, self._settings)
        if forbidden:
            return json_answer(forbidden.status, {"error": forbidden.text})
        return json_answer(200, {"csrf_token": self._token})

    def _act(self, request: TabRequest) -> Answer:
        refused = refusal(request, self._settings, self._token)
        if refused is not None:
            return self._refuse(request, refused)
        try:
            action = parse_action(request)
        except BadActionError as error:
            return self._refuse(request, Refusal(400, str(error)))
        if not self._rate.take():
            return self._refuse(request, Refusal(429, "Too many requests; wait a few seconds."))
        future = self._calls.begin(functools.partial(_perform, self._actions, action, request))
        if future is None:
            return self._refuse(request, Refusal(409, "Another request is being handled; repeat in a few seconds."))
        try:
            result = future.result(self._settings.action_deadline_s)
            status = _STATUS[result.outcome]
        except TimeoutError:
            result = ActionResult(
                ActionOutcome.UNAVAILABLE, "No answer yet: check the list of runs before you repeat the request."
            )
            status = 504
        except Exception as error:  # noqa: BLE001  the boundary: shown to the person, never raised into Spark
            _log.warning("action of the tab failed", extra={"action": action.verb, "reason": repr(error)[:_LOGGED_MAX]})
            result = ActionResult(ActionOutcome.UNAVAILABLE, f"The auditor failed: {str(error)[:_LOGGED_MAX]}")
            status = 503
        self._snapshots.expire()
        self._note(request, action, result)
        return self._answer(request, status, result)

    def _note(self, request: TabRequest, action: Action, result: ActionResult) -> None:
        who = request.user or "anonymous"
        fields = {"action": action.verb, "target": action.target, "outcome": result.outcome.value}
        _audit_log.info("spark ui action", extra=_caller(request) | fields | {"run_id": result.run_id})
        text = f"{action.verb} {action.target}, by {who} at {utc_text(self._clock.epoch_ms())}: {result.text}"
        with self._lock:
            self._last_request = text

    def _refuse(self, request: TabRequest, refused: Refusal) -> Answer:
        if self._refusals.take():
            fields = {"path": request.path[:_LOGGED_MAX], "status": refused.status, "reason": refused.text}
            _audit_log.warning("spark ui action refused", extra=_caller(request) | fields)
        headers = {405: (("Allow", "POST"),), 429: (("Retry-After", "5"),)}.get(refused.status, ())
        if request.wants_json:
            return json_answer(refused.status, {"error": refused.text}, headers)
        base = safe_base(request, self._settings)
        return Answer(refused.status, render_notice("Not done", refused.text, base), headers=headers)

    def _answer(self, request: TabRequest, status: int, result: ActionResult) -> Answer:
        if request.wants_json:
            values = {"outcome": result.outcome.value, "text": result.text, "run_id": result.run_id or None}
            return json_answer(status, values if status == 202 else values | {"error": result.text})
        base = safe_base(request, self._settings)
        if status == 202:
            return Answer(303, headers=(("Location", base + TAB_PATH),))
        return Answer(status, render_notice("Not done", result.text, base))


def _perform(actions: TabActions, action: Action, request: TabRequest) -> ActionResult:
    calls: dict[str, Callable[[str, str, str], ActionResult]] = {
        "run": actions.run,
        "cancel": actions.cancel,
        "pause": actions.pause,
        "resume": actions.resume,
    }
    return calls[action.verb](action.target, request.user, request.address)


def _caller(request: TabRequest) -> dict[str, str]:
    """Return the caller's identity. The forwarded address is not verified: it comes from the client or the proxy."""
    forwarded = request.headers.get("x-forwarded-for", "")[:_LOGGED_MAX]
    return {"user": request.user[:_LOGGED_MAX] or "anonymous", "address": request.address, "forwarded_for": forwarded}
