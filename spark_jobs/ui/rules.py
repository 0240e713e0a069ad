"""Who may press a button: pure decisions on one request.

Spark protects pages of the UI by its view access list, but nothing else that is served there. So all rules are enforced
here: the request is a POST and not a prefetch; buttons are switched on; the user is in Spark's modify access list, and
not anonymous unless this is allowed; the request comes from a page of this UI; and it has our own token.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from spark_jobs.ui.request import TabRequest
from spark_jobs.ui.settings import TabSettings

BODY_MAX_BYTES: Final = 4096
"""The tab's form has about 60 bytes. The Java side reads no more than this bound."""
_PREFETCH: Final = ("sec-purpose", "purpose", "x-moz")
_BASE: Final = re.compile(r"(?:https?://[A-Za-z0-9.:\[\]-]+)?(?:/[A-Za-z0-9._~%-]+)*/?")
_OWN_SITE: Final = ("same-origin", "none")
"""Values of ``Sec-Fetch-Site`` for a request from our own page, or typed by a person. A browser sets it, and no page
can forge it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not served."""

    status: int
    text: str


def refusal(request: TabRequest, settings: TabSettings, token: str) -> Refusal | None:
    """Return why a request for an action is refused; None: it is allowed."""
    return (
        _method_refusal(request)
        or permission_refusal(request, settings)
        or _origin_refusal(request, settings)
        or _body_refusal(request)
        or _token_refusal(request, token)
    )


def permission_refusal(request: TabRequest, settings: TabSettings) -> Refusal | None:
    """Return why this person may not press buttons at all; None: the page shows the buttons."""
    if not settings.is_trigger_enabled:
        return Refusal(403, "This tab is read-only: its buttons are switched off (setting ui_trigger_enabled).")
    if not request.may_modify:
        return Refusal(403, "Spark's modify access list (spark.modify.acls) does not name you.")
    if request.user:
        return None
    if not settings.is_anonymous_allowed:
        return Refusal(
            403,
            "Spark has no user name for you. Put an authenticating filter (spark.ui.filters) or a "
            "proxy (setting ui_user_header) in front of the UI, or allow anonymous use (setting ui_allow_anonymous).",
        )
    if not is_trusted_host(request.headers.get("host", ""), settings):
        return Refusal(403, "Anonymous use is allowed only under loopback names, numeric addresses and allowed hosts.")
    return None


def is_trusted_host(host: str, settings: TabSettings) -> bool:
    """Return whether a ``Host`` header cannot be that of a foreign domain that points at this machine."""
    name = (urlsplit(f"//{host}").hostname or "") if _is_authority(host) else ""
    proxy = urlsplit(settings.proxy_base).hostname or ""
    if name and name in ("localhost", proxy, *(allowed.lower() for allowed in settings.allowed_hosts)):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def safe_base(request: TabRequest, settings: TabSettings) -> str:
    """Return the prefix of links and forms: the configured base, or else Spark's, which a client's header may set."""
    base = settings.proxy_base or request.base
    return base.rstrip("/") if _BASE.fullmatch(base) else ""


def safe_link(url: str) -> str:
    """Return a link's target: an HTTP address or a path on this host; empty for all others, such as ``javascript:``."""
    is_web = url.startswith(("https://", "http://"))
    is_path = url.startswith("/") and not url.startswith(("//", "/\\"))
    return url if (is_web or is_path) and url.isprintable() and " " not in url else ""


def _method_refusal(request: TabRequest) -> Refusal | None:
    if request.method != "POST":
        return Refusal(405, "Only the method POST is supported here.")
    if any(request.headers.get(name) for name in _PREFETCH):
        return Refusal(403, "A prefetch is not executed here.")
    return None


def _origin_refusal(request: TabRequest, settings: TabSettings) -> Refusal | None:
    site = request.headers.get("sec-fetch-site")
    if site is not None and site not in _OWN_SITE:
        return Refusal(403, "The request was made by a page of another site.")
    if site is not None:
        return None
    # Browsers send no Sec-Fetch-Site over plain HTTP to other machines, but they send Origin with each POST.
    origin = request.headers.get("origin") or request.headers.get("referer")
    if origin is None or _authority(origin) in _own_authorities(request, settings):
        return None
    return Refusal(403, "The request was made by a page of another origin.")


def _own_authorities(request: TabRequest, settings: TabSettings) -> Sequence[str]:
    """Return the hosts, with ports, under which this UI is known.

    A page of another origin cannot set the forwarded one.
    """
    forwarded = request.headers.get("x-forwarded-host", "").partition(",")[0].strip()
    candidates = (request.headers.get("host", ""), forwarded, _authority(settings.proxy_base))
    return [candidate.lower() for candidate in candidates if candidate]


def _body_refusal(request: TabRequest) -> Refusal | None:
    if "transfer-encoding" in request.headers:
        return Refusal(411, "The request needs a Content-Length header.")
    if request.length > BODY_MAX_BYTES:
        return Refusal(413, f"The body has more than {BODY_MAX_BYTES} bytes.")
    return None


def _token_refusal(request: TabRequest, token: str) -> Refusal | None:
    given = request.headers.get("x-csrf-token") or request.form.get("token", "")
    if hmac.compare_digest(given.encode(errors="replace"), token.encode()):
        return None
    return Refusal(403, "The page's token is missing or old. Load the tab again and repeat.")


def _authority(url: str) -> str:
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return ""


def _is_authority(host: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9.-]+(?::\d{1,5})?|\[[0-9A-Fa-f:.]+\](?::\d{1,5})?", host) is not None
