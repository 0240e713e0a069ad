"""Adds the tab to a running Spark UI, and removes it again. Needs only PySpark: no JAR, no plugin.

Inside the driver's JVM, Janino compiles our Java classes; Spark includes it. The classes call two Python functions
through the callback server of the bridge. If any of this is unavailable (the UI is off, Spark Connect, no Janino, the
path is taken), one warning is logged and work continues without the tab.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from bookie.runtime.clock import Clock, SystemClock
from spark_jobs.ui.handler import TabHandler
from spark_jobs.ui.port import TabActions
from spark_jobs.ui.routes import TAB_PATH
from spark_jobs.ui.settings import TabSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_SECRET_BYTES: Final = 16
_PACKAGE_BYTES: Final = 4
_PACKAGE: Final = "bkheal.ui"
_REASON_MAX: Final = 500


class _TabUnavailableError(Exception):
    """The tab is unavailable; the text has the reason."""


@dataclass(slots=True)
class AttachedTab:
    """The tab in a Spark UI, or the reason why there is none."""

    url: str = ""
    """Address of the tab; empty: it is not attached."""
    why_not: str = ""
    _java: Any = field(default=None, repr=False)
    _callbacks: tuple[object, ...] = field(default=(), repr=False)
    """Keeps the objects alive that the JVM calls."""

    def detach(self) -> None:
        """Remove the tab.

        Call it before Spark stops; otherwise the page calls a bridge that has ended. It may be called repeatedly.
        """
        java, self._java = self._java, None
        if java is None:
            return
        from py4j.protocol import Py4JError

        try:
            java.detach()
        except (Py4JError, OSError) as error:
            _log.warning("auditor tab not detached", extra={"reason": _reason(error)})
        self.url = ""


class _Function:
    """A ``java.util.function.Function`` from text to text."""

    def __init__(self, function: Callable[[str], str]) -> None:
        self._function = function

    def apply(self, text: str) -> str:
        """Call the function; the JVM calls this."""
        return self._function(text)

    class Java:
        """Declares the Java interfaces to the bridge."""

        implements = ["java.util.function.Function"]


def attach_tab(
    spark: SparkSession, actions: TabActions, settings: TabSettings | None = None, *, clock: Clock | None = None
) -> AttachedTab:
    """Show the tab "Auditor" in the UI of a session. If the tab cannot be attached, no error is raised.

    Args:
        spark: a classic session with ``spark.ui.enabled``.
        actions: runs audits.
        settings: how the tab behaves; by default, it only shows the state.
        clock: for tests.
    """
    from py4j.protocol import Py4JError

    key, token = secrets.token_hex(_SECRET_BYTES), secrets.token_hex(_SECRET_BYTES)
    settings = settings or TabSettings()
    handler = TabHandler(actions, settings, clock or SystemClock(), key=key, token=token)
    try:
        tab = _attach(spark, handler, key, settings)
    except (_TabUnavailableError, Py4JError, OSError) as error:
        reason = _reason(error)
        _log.warning("no auditor tab in the Spark UI", extra={"reason": reason})
        return AttachedTab(why_not=reason)
    _log.info("auditor tab attached", extra={"url": tab.url, "buttons": settings.is_trigger_enabled})
    return tab


def _attach(spark: SparkSession, handler: TabHandler, key: str, settings: TabSettings) -> AttachedTab:
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import ensure_callback_server_started

    try:
        context = spark.sparkContext
    except (PySparkException, AttributeError) as error:
        raise _TabUnavailableError("the session is one of Spark Connect, whose UI belongs to the server") from error
    ui = context._jsc.sc().ui()
    if not ui.isDefined():
        raise _TabUnavailableError("the Spark UI is off (spark.ui.enabled=false)")
    gateway = context._gateway
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]  # pyspark has no types for it
    java = _compile(gateway)
    callbacks = _Function(handler.page), _Function(handler.api)
    proxies = ",".join(settings.trusted_proxies)
    java.attach(ui.get(), *callbacks, key, settings.proxy_base.rstrip("/"), settings.user_header, proxies)
    return AttachedTab(f"{context.uiWebUrl}{TAB_PATH}", "", java, callbacks)


def _compile(gateway: Any) -> Any:
    """Create an instance of our Java class."""
    jvm = gateway.jvm
    try:
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    except TypeError as error:  # the bridge treats a missing class as a package, which cannot be called
        raise _TabUnavailableError("this installation of Spark has no Janino compiler") from error
    compiler.setParentClassLoader(loader)
    # py4j caches the methods of a class by its name. With a second class of this name, it would call the methods of the
    # first.
    package = f"{_PACKAGE}_{secrets.token_hex(_PACKAGE_BYTES)}"
    source = files("spark_jobs").joinpath("ui", "AuditorTab.java").read_text(encoding="utf-8")
    compiler.cook(source.replace(f"package {_PACKAGE};", f"package {package};", 1))
    made = compiler.getClassLoader().loadClass(f"{package}.AuditorTab")
    no_types, no_values = gateway.new_array(jvm.java.lang.Class, 0), gateway.new_array(jvm.java.lang.Object, 0)
    return made.getConstructor(no_types).newInstance(no_values)


def _reason(error: Exception) -> str:
    """Return the text of an error; for an error of Java, without its stack trace."""
    java = getattr(error, "java_exception", None)
    return (str(error) if java is None else str(java.toString()))[:_REASON_MAX]
