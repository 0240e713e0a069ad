"""Settings of the tab. By default, it only shows the state; buttons must be enabled explicitly."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TabSettings:
    """How the tab behaves."""

    is_trigger_enabled: bool = False
    """Whether the tab has buttons. False: it only shows the state, and refuses every POST."""
    is_anonymous_allowed: bool = False
    """Whether a user without a name in Spark may press buttons.

    Spark's own access lists admit such users, so this is a separate option. It is meant for a demo on the loopback
    interface.
    """
    proxy_base: str = ""
    """Path or URL of the Spark UI behind a reverse proxy, such as ``/spark/auditor``; empty: from
    ``spark.ui.proxyBase``, ``APPLICATION_WEB_PROXY_BASE`` or the header ``X-Forwarded-Context``."""
    user_header: str = ""
    """Header with the name of the user whom a proxy has authenticated; see ``trusted_proxies``."""
    trusted_proxies: tuple[str, ...] = ()
    """Numeric addresses of that proxy. The header is ignored from any other client. Empty: it is always ignored."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names, without port, under which anonymous people may press buttons, besides loopback names and numeric
    addresses. Other names are refused, because the name of a foreign web page may be made to point at this machine."""
    actions_per_minute: int = 30
    """Largest rate of actions of all people together; more are refused with status 429. Up to ten may come at the same
    time."""
    snapshot_age_max_s: float = 0.5
    """An older state is requested again at the next view.

    The setting bounds the cost of many viewers.
    """
    snapshot_deadline_s: float = 1.0
    """How long a page waits for a new state before it shows the last one."""
    action_deadline_s: float = 5.0
    """How long a button waits for an answer before the page reports that there is none yet."""
    refresh_active_s: int = 2
    """Interval at which a page is reloaded while a run is active, seconds."""
    refresh_idle_s: int = 10
    """Interval otherwise, seconds: runs may also begin by schedule."""
    runs_shown: int = 20
