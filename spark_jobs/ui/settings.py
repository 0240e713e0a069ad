"""Settings of the tab. By default it only shows; buttons have to be enabled explicitly."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TabSettings:
    """How the tab behaves."""

    is_trigger_enabled: bool = False
    """Whether the tab has buttons. False: it only shows, and refuses every POST."""
    is_anonymous_allowed: bool = False
    """True if a user without a name in Spark may press them.

    Spark's own access lists admit such users, so this is a separate option. Meant for a demo on the loopback interface.
    """
    proxy_base: str = ""
    """Path or URL of the Spark UI behind a reverse proxy, such as ``/spark/auditor``; empty: from
    ``spark.ui.proxyBase``, ``APPLICATION_WEB_PROXY_BASE`` or the header ``X-Forwarded-Context``."""
    user_header: str = ""
    """Header with the name of the user whom a proxy has authenticated; see ``trusted_proxies``."""
    trusted_proxies: tuple[str, ...] = ()
    """Numeric addresses of that proxy. The header of any other client is ignored. Empty: no header counts."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names, without port, under which anonymous people may press buttons, besides loopback names and numeric
    addresses. This list keeps out a stranger's web page with a name that was made to point at this machine."""
    actions_per_minute: int = 30
    """Of all people together; more are refused with 429. Ten may come at once."""
    snapshot_age_max_s: float = 0.5
    """An older state is requested again at the next view.

    It bounds the cost of many viewers.
    """
    snapshot_deadline_s: float = 1.0
    """How long a page waits for a new state before it shows the last one."""
    action_deadline_s: float = 5.0
    """How long a button waits for an answer before the page reports that none came yet."""
    refresh_active_s: int = 2
    """How often a page is loaded again while a run is going."""
    refresh_idle_s: int = 10
    """How often otherwise; runs begin by schedule as well."""
    runs_shown: int = 20
